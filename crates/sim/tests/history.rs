//! A run that was interrupted anywhere and gone on with ends as one that never was; and what is held meanwhile is bounded.
#![allow(clippy::unwrap_used)]

use fednode_sim::{
    self as sim, Answer, ClosedRound, Contents, Failure, Incident, Moment, Outcome, Past, Scenario,
    Toys, Trainers, Wrapped,
};

/// What is known at a moment.
#[derive(Clone)]
struct Known {
    events: u64,
    contents: Contents,
    answers: usize,
    toys: Toys,
    closed: Vec<(usize, ClosedRound)>,
}

/// Toys that remember what they are asked to, and stop when they have been looked at so often.
struct Recording {
    toys: Toys,
    closed: Vec<(usize, ClosedRound)>,
    answers: Vec<Answer>,
    moments_left: usize,
    known: Option<Known>,
    /// Most blobs that were held at a moment.
    most: usize,
}

impl Recording {
    fn new(scenario: &Scenario, moments_left: usize) -> Self {
        let toys = Toys::new(scenario.seed, scenario.nodes + 1);
        Self {
            toys,
            closed: Vec::new(),
            answers: Vec::new(),
            moments_left,
            known: None,
            most: 0,
        }
    }
}

impl Wrapped for Recording {
    fn inner(&mut self) -> &mut dyn Trainers {
        &mut self.toys
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.closed.push((member, closed));
    }

    fn remember(&mut self, answer: &Answer) {
        self.answers.push(answer.clone());
    }

    fn pauses(&mut self, moment: &Moment<'_>) -> bool {
        if moment.is_past {
            return false;
        }
        self.most = self.most.max(moment.contents.len());
        self.moments_left = self.moments_left.saturating_sub(1);
        let known = || Known {
            events: moment.events,
            contents: moment.contents.clone(),
            answers: self.answers.len(),
            toys: self.toys.clone(),
            closed: self.closed.clone(),
        };
        if self.moments_left == 0 && self.known.is_none() {
            self.known = Some(known());
        }
        self.moments_left == 0
    }
}

/// All that a run leaves behind. Lineages are hashes of parameters, so equal ones mean equal bits.
fn essence(outcome: &Outcome, trainers: &Recording) -> String {
    let Outcome {
        elapsed,
        members,
        deliveries,
        fetches,
        strikes,
        bans,
        observed,
        ..
    } = outcome;
    let (blob_bytes, pools) = (fetches.bytes, &observed.pools);
    format!(
        "{elapsed:?} {members:?} {deliveries} {blob_bytes} {strikes:?} {bans:?} {pools:?} {:?}",
        trainers.closed
    )
}

fn scenario() -> Scenario {
    let mut scenario = Scenario {
        observe: false,
        ..Scenario::new(5, 9, 7)
    }
    .at(6.0, Incident::Kill(3))
    .at(14.0, Incident::Restart(3))
    .at(9.0, Incident::Kill(9));
    scenario.link.loss = 0.1;
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    scenario
}

#[test]
fn an_interruption_anywhere_changes_nothing() {
    let scenario = scenario();
    let mut whole = Recording::new(&scenario, usize::MAX);
    let outcome = sim::run_with(&scenario, &mut whole);
    assert!(
        outcome.failed.is_none() && outcome.unfinished().is_empty(),
        "{:?}",
        outcome.failed
    );
    let expected = essence(&outcome, &whole);
    let moments = usize::MAX - whole.moments_left;
    assert!(moments > 20, "{moments}");
    for stop in (1..=moments).step_by(moments / 10) {
        let mut first = Recording::new(&scenario, stop);
        assert!(sim::run_with(&scenario, &mut first).stopped);
        let known = first.known.unwrap();
        let answers = first.answers[..known.answers].to_vec();
        let past = Past {
            events: known.events,
            answers: Box::new(answers.into_iter()),
            contents: known.contents,
        };
        let mut second = Recording {
            toys: known.toys,
            closed: known.closed,
            ..Recording::new(&scenario, usize::MAX)
        };
        let outcome = sim::go_on(&scenario, &mut second, past);
        assert_eq!(
            essence(&outcome, &second),
            expected,
            "interrupted at moment {stop} of {moments}"
        );
        assert_eq!(
            [&first.answers[..known.answers], &second.answers].concat(),
            whole.answers
        );
    }
}

#[test]
fn the_past_of_another_run_is_refused() {
    let scenario = scenario();
    let mut first = Recording::new(&scenario, 15);
    assert!(sim::run_with(&scenario, &mut first).stopped);
    let known = first.known.unwrap();
    let past = |answers: &[Answer], contents: &Contents| {
        let answers: Vec<Answer> = answers.to_vec();
        Past {
            events: known.events,
            answers: Box::new(answers.into_iter()),
            contents: contents.clone(),
        }
    };
    let refused = |past: Past| {
        let outcome = sim::go_on(&scenario, &mut Recording::new(&scenario, usize::MAX), past);
        outcome
            .failed
            .is_some_and(|(_, failure)| failure == Failure::NotThisRun)
    };
    let answers = &first.answers[..known.answers];
    assert!(
        refused(past(&answers[1..], &known.contents)),
        "an answer is missing"
    );
    assert!(
        refused(past(answers, &Contents::new())),
        "contents are missing"
    );
    let twice = [answers, &answers[..1]].concat();
    assert!(refused(past(&twice, &known.contents)), "an answer too many");
}

#[test]
fn a_long_run_holds_no_more_than_a_short_one() {
    let most = |rounds| {
        let scenario = Scenario {
            observe: false,
            ..Scenario::new(5, 60, rounds)
        };
        let mut trainers = Recording::new(&scenario, usize::MAX);
        assert!(
            sim::run_with(&scenario, &mut trainers)
                .unfinished()
                .is_empty()
        );
        trainers.most
    };
    // An update is a shared part, two experts and, every other round, proxies: 180 or 240 blobs per round, and a mean.
    // Held are those of the slowest nodes' round, of the one before, and of the one that the quickest are in.
    assert!(most(12) <= 3 * 241, "{}", most(12));
}

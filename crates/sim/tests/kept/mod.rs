//! The scenarios whose transcripts are kept: one of each kind that the protocol has an answer to.

use fednode_core::Weighting;
use fednode_core::spec::Scale;
use fednode_sim::{Behaviour, Incident, Scenario};

pub(crate) fn good_weather(seed: u64) -> Scenario {
    Scenario::new(seed, 5, 6)
}

pub(crate) fn nobody_aggregates(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 7, 5);
    scenario.aggregator = false;
    scenario.slow.insert(2, 3);
    scenario
}

pub(crate) fn the_aggregator_comes_and_goes(seed: u64) -> Scenario {
    Scenario::new(seed, 6, 8)
        .at(9.0, Incident::Kill(6))
        .at(26.0, Incident::Restart(6))
}

pub(crate) fn members_come_and_go(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 9, 7)
        .at(7.0, Incident::Kill(4))
        .at(8.0, Incident::Kill(1))
        .at(14.0, Incident::Join(8))
        .at(15.0, Incident::Restart(4))
        .at(17.0, Incident::Leave(2))
        .at(24.0, Incident::Restart(1));
    scenario.absent = vec![8];
    scenario.link.loss = 0.2;
    scenario
}

pub(crate) fn cut_in_two(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 9, 12)
        .at(10.0, Incident::Partition(vec![0, 1]))
        .at(40.0, Incident::Heal);
    scenario.spec.round.deadline_seconds = 10.0;
    scenario
}

pub(crate) fn liars_everywhere(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 12, 6)
        .with(0, Behaviour::NanExperts)
        .with(1, Behaviour::HugeExperts)
        .with(2, Behaviour::ForeignShape)
        .with(3, Behaviour::CorruptServer)
        .with(4, Behaviour::FalseAccuser)
        .with(12, Behaviour::FalseMean);
    scenario.spec.round.audit = 0.5;
    scenario
}

pub(crate) fn liars_act_as_aggregators(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 6, 6)
        .with(1, Behaviour::FalseMean)
        .with(4, Behaviour::FalseMean)
        .at(11.0, Incident::Kill(3));
    scenario.aggregator = false;
    scenario
}

pub(crate) fn some_rest(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 10, 8)
        .at(12.0, Incident::Kill(5))
        .at(25.0, Incident::Restart(5));
    scenario.spec.round.participation = 0.4;
    scenario.spec.statistics.enabled = true;
    scenario
}

pub(crate) fn some_rest_without_aggregator(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 80, 5);
    scenario.spec.round.participation = 0.3;
    scenario.spec.exchange.experts = None;
    scenario.aggregator = false;
    scenario
}

pub(crate) fn nothing_is_averaged(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 5, 6).at(12.0, Incident::Kill(4));
    scenario.spec.exchange.averaging = None;
    scenario.inline_proxy_bytes = 1 << 20;
    scenario
}

pub(crate) fn experts_weigh_by_use_and_modules_are_pooled(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 8, 3)
        .with(2, Behaviour::KeptModule)
        .with(3, Behaviour::NanExperts)
        .at(17.0, Incident::Kill(5));
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    scenario.spec.pool.max_members = 4;
    if let Some(experts) = &mut scenario.spec.exchange.experts {
        experts.weighting = Weighting::Samples;
    }
    scenario
}

pub(crate) fn sketches_and_few_speakers(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 120, 6).at(12.0, Incident::Kill(120));
    scenario.spec.round.broadcast_set = 32;
    scenario.spec.scale = Scale {
        full_proxies: 0,
        follows: Some(24),
    };
    scenario.link.loss = 0.02;
    scenario
}

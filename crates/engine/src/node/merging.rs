//! Merging: the numbers are computed elsewhere; here the result becomes the node's new standing.

use fednode_core::{BlobId, ExpertId, Round};

use super::Node;
use crate::event::{MergeReport, Note, Output};
use crate::state::{Head, Held, Phase};

impl Node {
    pub(super) fn on_merged(&mut self, report: &MergeReport) {
        if self.state.phase != Phase::Merging || report.round != self.state.round {
            return;
        }
        for (expert, reason) in &report.rejected {
            self.strike(expert.owner, format!("expert {expert} refused: {reason}"));
        }
        let merged = self.state.round;
        self.remember_sources(merged, report);
        let next = self.adopt_candidate(merged, report);
        self.exchange = None;
        if next.0 > self.spec.rounds {
            self.enter_last_stage();
        } else {
            self.note_rejoined(merged, next);
            self.start_round(next);
        }
    }

    /// Keeps the foreign experts: an owner that is late next time may be stood in for by them.
    fn remember_sources(&mut self, round: Round, report: &MergeReport) {
        let every = self
            .spec
            .exchange
            .experts
            .as_ref()
            .map_or(1, |experts| experts.refresh_every);
        let sources = self
            .exchange
            .as_ref()
            .map(super::Exchange::fetched)
            .unwrap_or_default();
        for (expert, blob) in sources {
            self.state
                .held
                .entry(expert)
                .and_modify(|held| {
                    if held.blob != blob {
                        *held = Held { round, blob };
                    }
                })
                .or_insert(Held { round, blob });
        }
        let refused = |expert: &ExpertId| {
            report
                .rejected
                .iter()
                .any(|(rejected, _)| rejected == expert)
        };
        self.state
            .held
            .retain(|expert, held| held.round.0 + every >= round.0 && !refused(expert));
    }

    /// Follows the closed round, or goes on alone, and returns the round that comes next.
    fn adopt_candidate(&mut self, merged: Round, report: &MergeReport) -> Round {
        let candidate = self
            .exchange
            .as_mut()
            .and_then(|exchange| exchange.candidate.take());
        let by = candidate.as_ref().map(|candidate| candidate.author);
        let members = candidate
            .as_ref()
            .map_or(0, |candidate| candidate.global.members.len() as u32);
        self.note(Note::RoundClosed {
            round: merged,
            by,
            members,
        });
        let (Some(candidate), None, false) = (candidate, &report.refused_mean, report.lost_mean)
        else {
            if let (Some(author), Some(reason)) = (by, &report.refused_mean) {
                self.ban(
                    author,
                    format!("its mean of round {merged} was refused: {reason}"),
                );
            }
            self.keep_own_lineage();
            return merged.next();
        };
        let global = candidate.global;
        let (mean, parent) = (Some(global.mean), Some(global.parent));
        self.state.head = Head {
            round: candidate.round,
            mean,
            parent,
            history: global.history,
        };
        self.state.lineage = global.mean.id;
        self.trials.clear();
        candidate.round.next()
    }

    /// Nobody closed the round: from here on the node's own version is what its proxies compare in. Where nothing is
    /// averaged the lineage never changes.
    fn keep_own_lineage(&mut self) {
        if self.spec.exchange.averaging.is_none() {
            return;
        }
        let report = self
            .state
            .report
            .as_ref()
            .filter(|report| report.round == self.state.round);
        let own: Option<BlobId> = report.and_then(|report| report.shared).map(|blob| blob.id);
        if let Some(own) = own {
            self.state.lineage = own;
        }
    }

    fn enter_last_stage(&mut self) {
        match self.spec.pool.is_enabled() {
            true => self.enter_pool(),
            false => self.finish(),
        }
    }

    pub(super) fn finish(&mut self) {
        self.pooling = None;
        self.state.phase = Phase::Serving;
        self.outputs.push(Output::Save);
        self.note(Note::Finished);
    }
}

//! The parts of a node's model: what each is to the federation now, and how numbers go in and out.
//!
//! Parameters travel as [`ParamSet`]s, and the tensors stay here, on the device.

use fednode_core::{FederationSpec, Layout, ParamSet, ProxySet, Round, Slot};

use crate::agreement::Agreement;
use crate::algorithm::{self, Algorithm, Part, Role};
use crate::class_statistics::ClassStatistics;
use crate::device::ComputeDevice;
use crate::error::LearnError;
use crate::memory::Memory;
use crate::noised::Noised;
use crate::regression::Regression;
use crate::weights::Weights;

use super::preparing::Preparation;

/// Parts by their place among all, and the numbers that they are to have.
pub(super) type Changes = Vec<(usize, ParamSet)>;

/// The parts of the algorithm as they were at a moment.
pub(super) struct Snapshot {
    weights: Vec<Weights>,
    memory: Option<Memory>,
}

/// A node's model on its device.
pub(super) struct Parts {
    pub(super) algorithm: Box<dyn Algorithm>,
    pub(super) device: ComputeDevice,
    /// The statistics expert, if the spec wants one, and the round in which its sums are gathered.
    pub(super) statistics: Option<(Round, ClassStatistics)>,
    /// The statistics of the peers that agree, if the exchange wants them.
    pub(super) agreement: Option<Agreement>,
    /// The sums of the peers that agree, if a number is predicted with them.
    pub(super) regression: Option<Regression>,
    /// The statistics of peers under differential privacy, if the spec promises it.
    pub(super) noised: Option<Noised>,
    /// What is known of the columns of a raw table.
    pub(super) preparation: Option<Preparation>,
}

impl Parts {
    /// Builds the algorithm that the spec names; what else there may be comes later.
    pub(super) fn build(spec: &FederationSpec, device: &ComputeDevice) -> Result<Self, LearnError> {
        Ok(Self {
            algorithm: device.run(|| algorithm::build(spec, device.tensors()))?,
            device: device.clone(),
            statistics: None,
            agreement: None,
            regression: None,
            noised: None,
            preparation: None,
        })
    }

    /// Tells whether statistics are what is shared now.
    pub(super) fn shares_statistics(&self) -> bool {
        self.statistics
            .as_ref()
            .is_some_and(|(_, statistics)| statistics.is_gathered())
    }

    /// Returns all parts with what they are to the federation now: once statistics are shared, nothing else is.
    pub(super) fn roles(&self) -> Vec<(Role, &Part)> {
        let shares_statistics = self.shares_statistics();
        let now = |part: &Part| match part.role {
            Role::Shared if shares_statistics => Role::Private,
            role => role,
        };
        let mut roles: Vec<_> = self
            .algorithm
            .parts()
            .iter()
            .map(|part| (now(part), part))
            .collect();
        if let Some((_, statistics)) = &self.statistics {
            let role = if shares_statistics {
                Role::Shared
            } else {
                Role::Private
            };
            roles.extend([
                (role, &statistics.sums),
                (Role::Private, &statistics.choice),
            ]);
        }
        let agreement = self.agreement.iter().flat_map(Agreement::parts);
        let regression = self.regression.iter().flat_map(Regression::parts);
        let noised = self.noised.iter().flat_map(Noised::parts);
        let of_peers = agreement.chain(regression).chain(noised);
        roles.extend(of_peers.map(|part| (part.role, part)));
        let preparation = self.preparation.as_ref();
        roles.extend(preparation.map(|own| (own.moments.role, &own.moments)));
        roles
    }

    /// Returns the parts with a role, in order.
    pub(super) fn of_role(&self, has_role: impl Fn(Role) -> bool) -> Vec<&Part> {
        self.roles()
            .into_iter()
            .filter(|(role, _)| has_role(*role))
            .map(|(_, part)| part)
            .collect()
    }

    /// Returns the current shared part, if the algorithm averages anything.
    pub(super) fn shared(&self) -> Option<ParamSet> {
        let parts = self.of_role(|role| role == Role::Shared);
        let joined = |parts: Vec<&Part>| join(parts.into_iter().map(Part::params));
        (!parts.is_empty()).then(|| self.device.run(|| joined(parts)))
    }

    /// Returns the current experts in slot order.
    pub(super) fn experts(&self) -> Vec<ParamSet> {
        let parts = self.of_role(|role| matches!(role, Role::Expert(_)));
        self.device
            .run(|| parts.into_iter().map(Part::params).collect())
    }

    /// Returns the current gating proxies, if there is a gate.
    pub(super) fn proxies(&self) -> Option<ProxySet> {
        let gate = self.of_role(|role| role == Role::Gate).pop()?;
        let params = self.device.run(|| gate.params());
        let (_, proxies) = params.into_tensors().next()?;
        // A gate's weight is `[K, n]` as in PyTorch: its rows are the proxies.
        let dimension = *proxies.shape().last()?;
        let proxies = ProxySet::new(dimension, proxies.into_values());
        Some(proxies.expect("the spec bounds the number of experts"))
    }

    /// Returns names and shapes of the shared part.
    pub(super) fn shared_layout(&self) -> Option<Layout> {
        let parts = self.of_role(|role| role == Role::Shared);
        (!parts.is_empty()).then(|| parts.into_iter().flat_map(Part::layout).collect())
    }

    /// Returns the numbers of all parts.
    pub(super) fn weights(&self) -> Vec<Weights> {
        self.algorithm
            .parts()
            .iter()
            .map(|part| part.weights.clone())
            .collect()
    }

    /// Returns what [`Self::go_back`] takes.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            weights: self.weights(),
            memory: self.algorithm.memory(),
        }
    }

    /// Makes the parts what they were.
    ///
    /// # Errors
    /// Fails on a memory that is not the algorithm's.
    pub(super) fn go_back(&mut self, to: Snapshot) -> Result<(), LearnError> {
        self.put_back(to.weights);
        let nothing = ParamSet::new();
        self.algorithm.recall(to.memory.as_ref(), &nothing)
    }

    pub(super) fn put_back(&mut self, weights: Vec<Weights>) {
        for (part, weights) in self.algorithm.parts_mut().iter_mut().zip(weights) {
            part.weights = weights;
        }
        self.algorithm.on_parts_replaced();
    }

    /// Picks from `params` what belongs to each part with a role, given the prefix of the part's names.
    pub(super) fn pick(
        &self,
        params: &ParamSet,
        has_role: impl Fn(Role) -> bool,
        prefix: impl Fn(&Part) -> String,
    ) -> Changes {
        let parts = self
            .roles()
            .into_iter()
            .enumerate()
            .filter(|(_, (role, _))| has_role(*role));
        let picked = parts.map(|(at, (_, part))| {
            let mut own = ParamSet::new();
            for (name, shape) in part.layout() {
                let tensor = params
                    .get(&format!("{}{name}", prefix(part)))
                    .expect("the layout was checked");
                own.insert(name, &shape, tensor.values().to_vec())
                    .expect("a layout is a valid set");
            }
            (at, own)
        });
        picked.collect()
    }

    /// Picks what a shared part replaces.
    ///
    /// # Errors
    /// Says how it does not fit.
    pub(super) fn pick_shared(&self, shared: &ParamSet) -> Result<Changes, LearnError> {
        let layout = self
            .shared_layout()
            .ok_or_else(|| LearnError::NoSuchPart("shared part".into()))?;
        check("the shared part", shared, &layout)?;
        Ok(self.pick(shared, |role| role == Role::Shared, |_| String::new()))
    }

    /// Picks what an expert replaces.
    ///
    /// # Errors
    /// Says how it does not fit.
    pub(super) fn pick_expert(&self, slot: Slot, expert: &ParamSet) -> Result<Changes, LearnError> {
        let is_slot = |role| role == Role::Expert(slot);
        let part = self.of_role(is_slot).pop();
        let part = part.ok_or_else(|| LearnError::NoSuchPart(format!("expert {slot}")))?;
        check(&part.title(), expert, &part.layout())?;
        Ok(self.pick(expert, is_slot, |_| String::new()))
    }

    pub(super) fn load(&mut self, changes: Changes) {
        let tensors = self.device.tensors();
        let statistics = self.statistics.iter_mut();
        let statistics =
            statistics.flat_map(|(_, statistics)| [&mut statistics.sums, &mut statistics.choice]);
        let agreement = self.agreement.iter_mut().flat_map(Agreement::parts_mut);
        let regression = self.regression.iter_mut().flat_map(Regression::parts_mut);
        let noised = self.noised.iter_mut().flat_map(Noised::parts_mut);
        let preparation = self.preparation.iter_mut().map(|own| &mut own.moments);
        let mut parts: Vec<&mut Part> = self
            .algorithm
            .parts_mut()
            .iter_mut()
            .chain(statistics)
            .chain(agreement)
            .chain(regression)
            .chain(noised)
            .chain(preparation)
            .collect();
        self.device.run(|| {
            for (at, params) in changes {
                parts[at]
                    .load(&params, tensors)
                    .expect("the layout was checked");
            }
        });
        let algorithm = self.algorithm.as_mut();
        self.device.run(|| algorithm.on_parts_replaced());
    }
}

/// Joins sets with distinct names.
pub(super) fn join(sets: impl Iterator<Item = ParamSet>) -> ParamSet {
    let mut joined = ParamSet::new();
    for set in sets {
        joined
            .extend_prefixed("", set)
            .expect("the parts of a model have distinct names");
    }
    joined
}

/// Checks layout and finiteness.
pub(super) fn check(part: &str, params: &ParamSet, layout: &Layout) -> Result<(), LearnError> {
    params
        .check_layout(layout)
        .map_err(|mismatch| LearnError::Layout {
            part: part.into(),
            mismatch,
        })?;
    let is_finite =
        |tensor: &fednode_core::Tensor| tensor.values().iter().all(|value| value.is_finite());
    match params.iter().find(|(_, tensor)| !is_finite(tensor)) {
        Some((name, _)) => Err(LearnError::NotFinite {
            part: part.into(),
            tensor: name.into(),
        }),
        None => Ok(()),
    }
}

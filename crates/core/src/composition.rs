//! What a model that is served is made of.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that answers for samples by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// The node's own model.
    OwnModel,
    /// PM-MoE's mixture of the own private module and those of others.
    Pool,
    /// A classifier or line of the node's own statistics.
    OwnStatistics,
    /// The same of the own statistics and those of peers.
    PeersStatistics,
    /// The same with slots within the classes.
    Slots,
    /// A classifier of statistics that carry noise, of peers or of all nodes.
    NoisedStatistics,
    /// A classifier of the statistics of all nodes.
    CommonStatistics,
    /// A classifier of the statistics of groups of nodes, with noise or without: of those whose sums the node believes.
    GroupStatistics,
}

impl Component {
    /// Returns what it is called.
    pub const fn words(self) -> &'static str {
        match self {
            Self::OwnModel => "own model",
            Self::Pool => "pool of private modules",
            Self::OwnStatistics => "own statistics",
            Self::PeersStatistics => "peers' statistics",
            Self::Slots => "peers' statistics with slots",
            Self::NoisedStatistics => "noised statistics",
            Self::CommonStatistics => "statistics of all nodes",
            Self::GroupStatistics => "statistics of groups",
        }
    }
}

/// A component, and what it counts for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// What it is.
    pub component: Component,
    /// What it counts for, 0 to 1; absent where a gate decides that for each sample.
    pub weight: Option<f64>,
}

/// What a model that is served is made of; weights add up to 1.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Composition {
    /// The components that count, the heaviest first.
    pub shares: Vec<Share>,
    /// Those that were there and do not help.
    pub left_out: Vec<Component>,
    /// What a row of a peer counts for beside an own one, 0 to 1, where the node found that out on its own rows.
    pub trust: Option<f64>,
}

impl Composition {
    /// Begins with what answers before anything is joined with it.
    pub fn of(first: Component) -> Self {
        let share = Share {
            component: first,
            weight: Some(1.0),
        };
        Self {
            shares: vec![share],
            ..Self::default()
        }
    }

    /// Joins a component, which counts for so much; the others count for the rest. One of weight 0 is left out.
    #[must_use]
    pub fn joined(mut self, component: Component, weight: f64) -> Self {
        if weight <= 0.0 {
            return self.without(component);
        }
        for share in &mut self.shares {
            share.weight = share.weight.map(|before| before * (1.0 - weight));
        }
        let (counts, left): (Vec<Share>, Vec<Share>) = std::mem::take(&mut self.shares)
            .into_iter()
            .partition(|share| share.weight != Some(0.0));
        self.left_out
            .extend(left.iter().map(|share| share.component));
        self.shares = counts;
        let weight = Some(weight);
        self.shares.push(Share { component, weight });
        self.shares.sort_by(|a, b| {
            let weight = |share: &Share| share.weight.unwrap_or_default();
            weight(b).total_cmp(&weight(a))
        });
        self
    }

    /// Joins a component by a gate that decides for each sample.
    #[must_use]
    pub fn gated(mut self, component: Component) -> Self {
        let weight = None;
        self.shares.push(Share { component, weight });
        for share in &mut self.shares {
            share.weight = None;
        }
        self
    }

    /// Notes a component that was there and does not help.
    #[must_use]
    pub fn without(mut self, component: Component) -> Self {
        self.left_out.push(component);
        self
    }

    /// Tells whether there is more to say than that the algorithm's model is served.
    pub fn says_anything(&self) -> bool {
        let is_plain = |share: &Share| share.component == Component::OwnModel;
        !(self.shares.iter().all(is_plain) && self.left_out.is_empty())
    }
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, share) in self.shares.iter().enumerate() {
            let words = share.component.words();
            let comma = if at == 0 { "" } else { ", " };
            match share.weight {
                Some(weight) => write!(f, "{comma}{:.0} % {words}", 100.0 * weight)?,
                None => write!(f, "{comma}{words}")?,
            }
        }
        if self.shares.iter().any(|share| share.weight.is_none()) {
            write!(f, ", weighed sample by sample")?;
        }
        if let Some(trust) = self.trust {
            write!(
                f,
                "; a row of a peer counts {:.0} % of an own one",
                100.0 * trust
            )?;
        }
        if !self.left_out.is_empty() {
            let names: Vec<&str> = self.left_out.iter().map(|it| it.words()).collect();
            write!(f, "; left out: {}", names.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_one_and_the_heaviest_is_first() {
        let both = Composition::of(Component::OwnModel)
            .joined(Component::Slots, 0.6)
            .joined(Component::NoisedStatistics, 0.5);
        let weights: Vec<f64> = both
            .shares
            .iter()
            .filter_map(|share| share.weight)
            .collect();
        assert_eq!(weights.iter().sum::<f64>(), 1.0);
        assert_eq!(both.shares[0].component, Component::NoisedStatistics);
        assert_eq!(
            both.to_string(),
            "50 % noised statistics, 30 % peers' statistics with slots, 20 % own model"
        );
    }

    #[test]
    fn what_does_not_help_is_said() {
        let alone = Composition::of(Component::Pool).joined(Component::PeersStatistics, 0.0);
        assert_eq!(
            alone.to_string(),
            "100 % pool of private modules; left out: peers' statistics"
        );
        let all = Composition::of(Component::OwnModel).joined(Component::PeersStatistics, 1.0);
        assert_eq!(
            all.to_string(),
            "100 % peers' statistics; left out: own model"
        );
        assert!(!Composition::of(Component::OwnModel).says_anything());
        assert!(Composition::of(Component::Pool).says_anything());
    }

    #[test]
    fn a_gate_decides_for_each_sample() {
        let gated = Composition::of(Component::OwnModel).gated(Component::CommonStatistics);
        assert_eq!(
            gated.to_string(),
            "own model, statistics of all nodes, weighed sample by sample"
        );
    }
}

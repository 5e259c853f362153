//! Clusters of nodes that call the classes differently.
//!
//! In cluster `g` class `y` is called `(y + STEP * g) mod C`, with `C` classes. A node that holds several clusters holds a
//! mixture of conflicting labels.

use super::{Change, Domains, Kind, Nature, number};

pub(super) const KIND: Kind = Kind {
    name: "renamed",
    form: "renamed:CLUSTERS:STEP[:HELD]",
    bounds: "CLUSTERS from 2 to 1000, STEP from 1 to 65535 and HELD from 1 to CLUSTERS",
    about: "labels moved on by STEP per cluster; node i holds HELD (1) of the clusters, from cluster i mod CLUSTERS on",
    parse,
};

/// More clusters than any federation has nodes to tell apart.
const MOST_CLUSTERS: u16 = 1000;

#[derive(Debug)]
struct Renamed {
    domains: Domains,
    step: u16,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    let (domains, step): (Vec<&str>, &str) = match arguments {
        [clusters, step] => (vec![clusters], step),
        [clusters, step, held] => (vec![clusters, held], step),
        _ => return None,
    };
    Some(Box::new(Renamed {
        domains: Domains::parse(&domains, MOST_CLUSTERS)?,
        step: number(step, 1..=u16::MAX)?,
    }))
}

impl Change for Renamed {
    /// Refuses clusters that would call all classes alike.
    fn check(&self, nature: &Nature) -> Result<(), String> {
        let classes = nature.classes as u64;
        let is_back = |cluster: &u16| u64::from(self.step) * u64::from(*cluster) % classes == 0;
        match (1..self.domains.count()).find(is_back) {
            None => Ok(()),
            Some(cluster) => Err(format!(
                "with {classes} classes clusters 0 and {cluster} would call all of them alike"
            )),
        }
    }

    fn domains(&self) -> Domains {
        self.domains
    }

    fn change_label(&self, domain: u16, label: u16, classes: usize) -> u16 {
        let moved = usize::from(label) + usize::from(self.step) * usize::from(domain);
        (moved % classes) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_move_on_and_come_round() {
        let renamed = parse(&["2", "3"]).unwrap();
        let labels = |domain| [0, 6, 7, 9].map(|label| renamed.change_label(domain, label, 10));
        assert_eq!(labels(0), [0, 6, 7, 9]);
        assert_eq!(labels(1), [3, 9, 0, 2]);
    }
}

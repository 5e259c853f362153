//! The heat maps of a run: nodes by the owners of modules, and nodes by experts.

use std::collections::BTreeMap;

use fednode_core::{MixedIn, PoolMember};

use super::MOST_ROWS;
use crate::report::heat::{Cell, Heat, Unit};
use crate::report::run::{Node, Run, module_owners, short};
use crate::report::svg::Plot;

/// Draws those for which a run has numbers.
pub(super) fn all(run: &Run) -> impl Iterator<Item = Plot> {
    let all = [similarity, peer_weights, gate_mass, scores, experts];
    all.map(|draw| draw(run)).into_iter().flatten()
}

/// Makes the rows and columns of a heat map of nodes by owners of modules.
///
/// `cell` gets the member of the row's pool, if the column's node is one, and whether the module is the row's own.
fn modules(
    run: &Run,
    cell: impl Fn(Option<&PoolMember>, Whose) -> Cell,
) -> (Vec<String>, Vec<(String, Vec<Cell>)>) {
    let owners: Vec<String> = module_owners(run).into_iter().take(MOST_ROWS).collect();
    let labels: BTreeMap<&str, &str> = run
        .nodes
        .iter()
        .map(|node| (node.node_id.as_str(), node.label.as_str()))
        .collect();
    let row = |node: &Node| {
        let members = &node.pool.as_ref()?.members;
        let own = members.iter().find(|member| member.node.is_none());
        let foreign: BTreeMap<String, &PoolMember> = members
            .iter()
            .filter_map(|member| Some((member.node?.to_string(), member)))
            .collect();
        let of = |owner: &String| {
            if *owner == node.node_id {
                cell(own, Whose::Own)
            } else {
                cell(foreign.get(owner).copied(), Whose::Foreign)
            }
        };
        Some((node.label.clone(), owners.iter().map(of).collect()))
    };
    let rows = run.nodes.iter().filter_map(row).take(MOST_ROWS).collect();
    let label = |owner: &String| {
        labels
            .get(owner.as_str())
            .map_or_else(|| short(owner), |label| (*label).to_owned())
    };
    (owners.iter().map(label).collect(), rows)
}

/// Whose module it is, seen from a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Own,
    Foreign,
}

fn gate_mass(run: &Run) -> Option<Plot> {
    let (columns, rows) = modules(run, |member, _| match member {
        Some(member) if member.kept => Cell::Value(member.gate_mass),
        Some(member) => Cell::LeftOut(member.gate_mass),
        None => Cell::Absent,
    });
    Heat {
        title: "Gate mass: how much each node uses each module (per cent)",
        description: "Mean weight that each node's gate gives to each module, over its validation samples. The own module \
                      lies on the diagonal. A corner cut marks a module that was left out; “–” one that was not there.",
        slug: "gate-mass",
        columns_label: "module of node",
        columns,
        rows,
        range: Some((0.0, 1.0)),
        unit: Unit::Share,
    }
    .draw()
}

fn scores(run: &Run) -> Option<Plot> {
    let (columns, rows) = modules(run, |member, whose| {
        match (whose, member.map(|member| (member.score, member.kept))) {
            (Whose::Own, _) => Cell::Own,
            (Whose::Foreign, None | Some((None, _))) => Cell::Absent,
            (Whose::Foreign, Some((Some(score), true))) => Cell::Value(score),
            (Whose::Foreign, Some((Some(score), false))) => Cell::LeftOut(score),
        }
    });
    Heat {
        title: "How well each module fits each node (energy; more is more similar)",
        description: "Score of each foreign module's outputs beside those of the own module. The modules with the lowest \
                      scores are left out. A corner cut marks a module that was left out; “–” one that was not there.",
        slug: "scores",
        columns_label: "module of node",
        columns,
        rows,
        range: None,
        unit: Unit::Score,
    }
    .draw()
}

fn similarity(run: &Run) -> Option<Plot> {
    let (columns, rows) = peers(run, |mixed| mixed.similarity);
    Heat {
        title: "Whose experts each node mixed in, and how similar they are",
        description: "Highest similarity between a proxy of the column's node and one of the row's node: their cosine or, of \
                      class means, their agreement. It is that of the last round in which the row's node mixed in experts \
                      of others. “–”: it mixed in none of that node's.",
        slug: "similarity",
        columns_label: "experts of node",
        columns,
        rows,
        range: None,
        unit: Unit::Score,
    }
    .draw()
}

fn peer_weights(run: &Run) -> Option<Plot> {
    let (columns, rows) = peers(run, |mixed| mixed.weight);
    Heat {
        title: "How much the experts of each peer count (per cent)",
        description: "Weight of the column's node in the experts of the row's node, in the last round in which that mixed in \
                      experts of others. The rest is its own. “–”: it mixed in none of that node's.",
        slug: "peer-weights",
        columns_label: "experts of node",
        columns,
        rows,
        range: Some((0.0, 1.0)),
        unit: Unit::Share,
    }
    .draw()
}

/// Returns for each node what it last had of each other, with the labels of the columns.
fn peers(run: &Run, value: impl Fn(&MixedIn) -> f64) -> (Vec<String>, Vec<(String, Vec<Cell>)>) {
    let ids: Vec<(&str, &str)> = run
        .nodes
        .iter()
        .map(|node| (node.node_id.as_str(), node.label.as_str()))
        .take(MOST_ROWS)
        .collect();
    let mut newest: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for record in run.records.iter().filter(|record| !record.mixed.is_empty()) {
        let mixed = record.mixed.iter();
        let mixed = mixed.map(|mixed| (mixed.node.to_string(), value(mixed)));
        newest.insert(record.node_id.to_string(), mixed.collect());
    }
    let row = |(id, label): &(&str, &str)| {
        let mixed = newest.get(*id)?;
        let cell = |(owner, _): &(&str, &str)| match mixed.get(*owner) {
            _ if owner == id => Cell::Own,
            Some(value) => Cell::Value(*value),
            None => Cell::Absent,
        };
        Some(((*label).to_owned(), ids.iter().map(cell).collect()))
    };
    let columns = ids.iter().map(|(_, label)| (*label).to_owned()).collect();
    (columns, ids.iter().filter_map(row).collect())
}

fn experts(run: &Run) -> Option<Plot> {
    let n_experts = run.nodes.iter().map(|node| node.expert_share.len()).max()?;
    let cells = |node: &Node| {
        let share = |at: usize| {
            node.expert_share
                .get(at)
                .map_or(Cell::Absent, |share| Cell::Value(*share))
        };
        (node.label.clone(), (0..n_experts).map(share).collect())
    };
    // A single expert decides every sample, so there is nothing to draw.
    let rows = if n_experts > 1 {
        run.nodes.iter().take(MOST_ROWS).map(cells).collect()
    } else {
        Vec::new()
    };
    Heat {
        title: "Which of its experts decides a node's test samples (per cent)",
        description: "Share of each node's test samples that its own gate sends to each of its experts, in its last round.",
        slug: "experts",
        columns_label: "expert",
        columns: (0..n_experts).map(|at| at.to_string()).collect(),
        rows,
        range: Some((0.0, 1.0)),
        unit: Unit::Share,
    }
    .draw()
}

#[cfg(test)]
mod tests {
    use fednode_core::MixedIn;

    use super::*;
    use crate::report::fixtures;

    #[test]
    fn own_lies_on_the_diagonal_and_what_was_dropped_is_marked() {
        let text = gate_mass(&fixtures::run()).unwrap().inline();
        assert!(
            text.contains("node 2, module of node 2: 70<")
                && text.contains("node 2, module of node 3: 15, left out"),
            "{text}"
        );
        let text = scores(&fixtures::run()).unwrap().inline();
        assert!(
            text.contains("node 1, module of node 1: its own")
                && text.contains("node 3, module of node 2: 2.12"),
            "{text}"
        );
    }

    #[test]
    fn sources_of_experts_are_a_heat_map() {
        let mut records = fixtures::records(1);
        let mixed = |at: usize, similarity| MixedIn {
            node: fixtures::node_id(at),
            similarity,
            weight: 0.1,
        };
        // Node 1 mixed in those of node 3 in round 1 and of node 2 in round 2; node 3 none at all.
        records[0].mixed = vec![mixed(3, 0.9)];
        records[3].mixed = vec![mixed(2, 0.75)];
        records[1].mixed = vec![mixed(1, 0.25)];
        let run = Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            records,
        );
        let text = similarity(&run).unwrap().inline();
        let cells = [
            "node 1, experts of node 2: 0.75",
            "node 2, experts of node 1: 0.25",
            "node 1, experts of node 1: its own",
        ];
        assert!(
            cells.iter().all(|cell| text.contains(cell)) && !text.contains(": 0.90"),
            "{text}"
        );
        let text = peer_weights(&run).unwrap().inline();
        assert!(text.contains("node 1, experts of node 2: 10<"), "{text}");
        assert!(similarity(&fixtures::run()).is_none(), "nothing was mixed");
    }
}

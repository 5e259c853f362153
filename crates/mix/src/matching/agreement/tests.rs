use super::*;
use fednode_core::{Matching, PeersPerExpert, Slot};

fn node(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

/// Three classes of two features at the corners of a triangle, called by these names.
fn means(names: [usize; 3], counts: [f64; 3]) -> ClassMeans {
    let corners = [[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]];
    let mut means = vec![0.0; 6];
    for (name, corner) in names.iter().zip(corners) {
        means[2 * name..2 * name + 2].copy_from_slice(&corner);
    }
    let counts = counts.to_vec();
    ClassMeans { counts, means }
}

fn weights(nodes: &[ClassMeans], peers: PeersPerExpert) -> Vec<(u8, f64)> {
    let set = |means: &ClassMeans| {
        let proxy = means.to_proxy();
        Arc::new(ProxySet::new(proxy.len(), proxy).unwrap())
    };
    let known = (1..).map(node).zip(nodes.iter().map(set)).collect();
    let own = ExpertId {
        owner: node(1),
        slot: Slot(0),
    };
    let exchange = ExpertExchange::by(Matching::named(ROW.name), peers);
    let row = row(own, &known, &exchange, AS_THEY_ARE);
    let weight = |source: &Source| (source.expert.owner.as_bytes()[0], source.weight);
    row.sources.iter().map(weight).collect()
}

#[track_caller]
fn assert_close(got: &[(u8, f64)], expected: &[(u8, f64)]) {
    let is_close = |(a, b): (&(u8, f64), &(u8, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6;
    let are_close = got.len() == expected.len() && got.iter().zip(expected).all(is_close);
    assert!(are_close, "{got:?} is not {expected:?}");
}

#[test]
fn a_proxy_is_read_as_it_was_written() {
    let means = means([0, 1, 2], [5.0, 0.0, 120.0]);
    let read = ClassMeans::of_proxy(&means.to_proxy()).unwrap();
    assert_eq!(read.means, means.means);
    let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-4;
    assert!(read.counts.iter().zip(&means.counts).all(is_close));
    for broken in [
        &[][..],
        &[0.0],
        &[3e-6, 1e-6],
        &[1e-6, f32::NAN, 1.0],
        &[1e-6, -1e-6, 1.0],
        &[f32::INFINITY, 1.0],
        &[2e-6, 0.0, 0.0, 1.0, 1.0, 1.0],
    ] {
        assert_eq!(ClassMeans::of_proxy(broken), None, "{broken:?}");
    }
}

/// Node 2 has the same names, node 3 exchanged two of three, node 4 turned all of them. By hand, with 1/C = 1/3:
/// weights 1, (1/3 - 1/3) = 0 and 0.
#[test]
fn who_calls_the_classes_otherwise_gets_nothing() {
    let nodes = [
        means([0, 1, 2], [10.0; 3]),
        means([0, 1, 2], [20.0; 3]),
        means([0, 2, 1], [10.0; 3]),
        means([1, 2, 0], [10.0; 3]),
    ];
    let got = weights(&nodes, PeersPerExpert::ALL);
    assert_close(&got, &[(1, 1.0 / 3.0), (2, 2.0 / 3.0)]);
}

/// Classes of fewer than five samples are not compared. One class in common says nothing: (0.51 - 1/3) / (2/3).
#[test]
fn too_few_classes_in_common_count_by_half() {
    let nodes = [
        means([0, 1, 2], [10.0, 4.0, 0.0]),
        means([0, 2, 1], [14.0, 0.0, 0.0]),
    ];
    let half = (0.51 - 1.0 / 3.0) / (2.0 / 3.0);
    let total = 14.0 + 14.0 * half;
    let got = weights(&nodes, PeersPerExpert::ALL);
    assert_close(&got, &[(1, 14.0 / total), (2, 14.0 * half / total)]);
}

/// Two sites measure everything ten units higher: as they are no mean is nearest to its own class. Less their own mean
/// they agree, and a site that exchanged its two classes does not.
#[test]
fn sites_are_compared_by_how_their_classes_differ() {
    let site = |shift: f32, names: [usize; 2]| {
        let mut means = vec![0.0; 4];
        means[2 * names[0]..][..2].copy_from_slice(&[shift, shift]);
        means[2 * names[1]..][..2].copy_from_slice(&[shift + 1.0, shift - 0.5]);
        let counts = vec![3.0, 9.0];
        ClassMeans { counts, means }
    };
    let (mine, far, liar) = (site(0.0, [0, 1]), site(10.0, [0, 1]), site(10.0, [1, 0]));
    assert_eq!(mine.weight_of(&far, BY_SITE), 1.0);
    assert_eq!(mine.weight_of(&liar, BY_SITE), 0.0);
    assert!(mine.weight_of(&far, AS_THEY_ARE) < 0.1);
}

#[test]
fn a_boast_counts_as_ten_medians() {
    let nodes = [
        means([0, 1, 2], [10.0; 3]),
        means([0, 1, 2], [10.0; 3]),
        means([0, 1, 2], [1e9; 3]),
    ];
    let got = weights(&nodes, PeersPerExpert::ALL);
    assert_close(&got, &[(1, 1.0 / 12.0), (3, 10.0 / 12.0), (2, 1.0 / 12.0)]);
    let nearest = weights(&nodes, PeersPerExpert::Count(1));
    assert_close(&nearest, &[(1, 1.0 / 11.0), (3, 10.0 / 11.0)]);
    assert_close(&weights(&nodes, PeersPerExpert::Count(0)), &[(1, 1.0)]);
}

/// The statistics of two samples a class, half a step to both sides of the class's corner, divided by six.
fn statistics(names: [usize; 3], change: impl Fn(&mut [Vec<f32>; 3])) -> ParamSet {
    let means = means(names, [2.0; 3]);
    let mut arrays = [vec![1.0 / 3.0; 3], vec![0.0; 6], vec![0.0; 3]];
    for mean in means.means.chunks(2).enumerate() {
        let (class, mean) = mean;
        for side in [-0.5, 0.5] {
            let [x, y] = [mean[0] + side, mean[1] - side];
            arrays[1][2 * class] += x / 6.0;
            arrays[1][2 * class + 1] += y / 6.0;
            for (at, product) in [x * x, x * y, y * y].into_iter().enumerate() {
                arrays[2][at] += product / 6.0;
            }
        }
    }
    change(&mut arrays);
    let mut params = ParamSet::new();
    let shapes: [&[usize]; 3] = [&[3], &[3, 2], &[3]];
    let names = ["agreement.counts", "agreement.sums", "agreement.scatter"];
    for ((name, shape), values) in names.iter().zip(shapes).zip(arrays) {
        params.insert(*name, shape, values).unwrap();
    }
    params
}

#[test]
fn statistics_are_judged_by_what_they_say() {
    let own = statistics([0, 1, 2], |_| {});
    let judge = |names, change: &dyn Fn(&mut [Vec<f32>; 3])| {
        judge(&own, &statistics(names, change), AS_THEY_ARE).err()
    };
    assert_eq!(judge([0, 1, 2], &|_| {}), None);
    // The proxies were copied, the labels were exchanged.
    assert_eq!(judge([1, 2, 0], &|_| {}), Some(Lie::Disagreement));
    assert_eq!(judge([0, 2, 1], &|_| {}), Some(Lie::Disagreement));
    let impossible = Some(Lie::Impossible);
    assert_eq!(judge([0, 1, 2], &|arrays| arrays[0][1] = -0.1), impossible);
    assert_eq!(judge([0, 1, 2], &|arrays| arrays[2][0] = 0.0), impossible);
    assert_eq!(judge([0, 1, 2], &|arrays| arrays[2][1] = 9.0), impossible);
    let huge = |arrays: &mut [Vec<f32>; 3]| {
        arrays[2].iter_mut().for_each(|product| *product *= 11.0);
    };
    assert_eq!(judge([0, 1, 2], &huge), Some(Lie::Spread));
    let mut other = ParamSet::new();
    other.insert("weight", &[1], vec![0.0]).unwrap();
    assert_eq!(super::judge(&own, &other, AS_THEY_ARE), Err(Lie::Form));
}

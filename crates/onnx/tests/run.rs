//! Files that are written here, run by a library that reads the format: every operator with numbers worked out by hand.
#![allow(clippy::unwrap_used)]

use fednode_onnx::{Element, Graph, Reduction, Value, Window};
use rten::{Model, ValueView};

/// Builds a graph on `[N, 3]` and runs it on two samples: 1, 2, -3 and 0.5, 0, 4.
fn run(build: impl Fn(&mut Graph, Value) -> Value) -> Vec<f32> {
    run_on([1.0, 2.0, -3.0, 0.5, 0.0, 4.0], build)
}

fn run_on(rows: [f32; 6], build: impl Fn(&mut Graph, Value) -> Value) -> Vec<f32> {
    let mut graph = Graph::default();
    let input = graph.input("rows", Element::Float, &[3]);
    let output = build(&mut graph, input);
    let file = graph.finish("test", ("made", output), &[]).unwrap();
    let model = Model::load(file).unwrap();
    let view = ValueView::from_shape([2, 3], &rows[..]).unwrap();
    let ids = ["rows", "made"].map(|name| model.node_id(name).unwrap());
    let [made] = model
        .run_n(vec![(ids[0], view.into())], [ids[1]], None)
        .unwrap();
    let rten::Value::FloatTensor(made) = made else {
        panic!("the output is made of floats");
    };
    made.into_data()
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    let is_close = |(got, expected): (&f32, &f32)| (got - expected).abs() < 1e-5;
    let all = got.len() == expected.len() && got.iter().zip(expected).all(is_close);
    assert!(all, "{got:?} is not {expected:?}");
}

#[test]
fn arithmetic_stretches_sizes_of_one() {
    let got = run(|graph, rows| {
        let row = graph.floats("row", vec![1.0, 10.0, 100.0], &[3]);
        let sum = graph.add(rows, row);
        let doubled = graph.mul_number(sum, 2.0);
        let less = graph.sub(doubled, rows);
        let two = graph.number(2.0);
        let half = graph.div(less, two);
        graph.add_number(half, 0.25)
    });
    // (2 (x + r) - x) / 2 + 0.25 = x / 2 + r + 0.25
    assert_close(&got, &[1.75, 11.25, 98.75, 1.5, 10.25, 102.25]);
}

#[test]
fn functions_are_those_of_the_format() {
    let got = run(|graph, rows| {
        let values = [
            graph.relu(rows),
            graph.leaky_relu(rows, 0.01),
            graph.abs(rows),
            graph.sign(rows),
            graph.clip(rows, [-1.0, 1.5]),
        ];
        graph.concat(&values, 1)
    });
    let first = [
        1.0, 2.0, 0.0, 1.0, 2.0, -0.03, 1.0, 2.0, 3.0, 1.0, 1.0, -1.0, 1.0, 1.5, -1.0,
    ];
    assert_close(&got[..15], &first);
    assert_close(&got[18..21], &[0.5, 0.0, 4.0]);
    let got = run(|graph, rows| {
        let (sigmoid, exp, amount) = (graph.sigmoid(rows), graph.exp(rows), graph.abs(rows));
        let more = graph.add_number(amount, 1.0);
        let (log, root) = (graph.log(more), graph.sqrt(more));
        graph.concat(&[sigmoid, exp, log, root], 1)
    });
    let first = [
        0.731_058_6,
        0.880_797_1,
        0.047_425_87,
        std::f32::consts::E,
        7.389_056,
        0.049_787_07,
        std::f32::consts::LN_2,
        1.098_612_3,
        1.386_294_4,
        std::f32::consts::SQRT_2,
        1.732_050_8,
        2.0,
    ];
    assert_close(&got[..12], &first);
}

#[test]
fn softmax_goes_over_the_columns() {
    // exp(1), exp(2), exp(-3) over their sum, 10.157126.
    let expected = [0.267_623, 0.727_475, 0.004_901_7];
    assert_close(&run(|graph, rows| graph.softmax(rows))[..3], &expected);
    let logarithms = expected.map(f32::ln);
    let got = run(|graph, rows| graph.log_softmax(rows));
    assert!(
        got.iter()
            .zip(logarithms)
            .all(|(got, log)| (got - log).abs() < 1e-3)
    );
}

#[test]
fn gaps_are_found_and_filled() {
    let rows = [1.0, f32::NAN, -3.0, f32::NAN, 0.0, 4.0];
    let got = run_on(rows, |graph, rows| {
        let (gaps, filled) = (
            graph.is_nan(rows),
            graph.floats("fill", vec![7.0, 8.0, 9.0], &[3]),
        );
        let whole = graph.choose(gaps, filled, rows);
        let marks = graph.cast(gaps, Element::Float);
        graph.concat(&[whole, marks], 1)
    });
    assert_close(
        &got,
        &[1.0, 8.0, -3.0, 0.0, 1.0, 0.0, 7.0, 0.0, 4.0, 1.0, 0.0, 0.0],
    );
}

/// The format says that the first of equal numbers is taken; this library takes the last, so none are equal here.
#[test]
fn the_largest_numbers_are_found() {
    let places = |graph: &mut Graph, places: Value| graph.cast(places, Element::Float);
    let rows = [2.0, 1.5, 1.0, 0.0, 4.0, 3.0];
    let got = run_on(rows, |graph, rows| {
        let best = graph.arg_max(rows);
        places(graph, best)
    });
    assert_close(&got, &[0.0, 1.0]);
    let got = run_on(rows, |graph, rows| {
        let best = graph.top(rows, 2);
        places(graph, best)
    });
    assert_close(&got, &[0.0, 1.0, 1.0, 2.0]);
}

#[test]
fn reductions_keep_their_dimension() {
    let got = run(|graph, rows| {
        let sum = graph.reduce(Reduction::Sum, rows, 1);
        let mean = graph.reduce(Reduction::Mean, rows, 1);
        let largest = graph.reduce(Reduction::Largest, rows, 1);
        graph.concat(&[sum, mean, largest], 1)
    });
    assert_close(&got, &[0.0, 0.0, 2.0, 4.5, 1.5, 4.0]);
}

#[test]
fn rows_are_multiplied_by_a_matrix() {
    let got = run(|graph, rows| {
        let matrix = graph.floats("matrix", vec![1.0, 0.0, 0.0, 1.0, 2.0, -1.0], &[3, 2]);
        let bias = graph.floats("bias", vec![0.5, -0.5], &[2]);
        graph.affine(rows, matrix, Some(bias))
    });
    assert_close(
        &got,
        &[
            1.0 - 6.0 + 0.5,
            2.0 + 3.0 - 0.5,
            0.5 + 8.0 + 0.5,
            -4.0 - 0.5,
        ],
    );
}

#[test]
fn columns_and_rows_of_tables_are_found() {
    let got = run(|graph, rows| {
        let swapped = graph.columns(rows, &[2, 0]);
        let last = graph.narrow(rows, 1, 1, 2);
        graph.concat(&[swapped, last], 1)
    });
    assert_close(&got, &[-3.0, 1.0, 2.0, -3.0, 4.0, 0.5, 0.0, 4.0]);
    let got = run_on([0.0, 1.0, 2.0, 2.0, 2.0, 0.0], |graph, rows| {
        let numbers = graph.cast(rows, Element::Int);
        let table = graph.floats("table", vec![1.0, 2.0, 30.0, 40.0, 500.0, 600.0], &[3, 2]);
        let found = graph.look_up(table, numbers);
        let sum = graph.reduce(Reduction::Sum, found, 1);
        graph.flat(sum)
    });
    assert_close(&got, &[531.0, 642.0, 1001.0, 1202.0]);
}

#[test]
fn truths_choose_and_count() {
    let got = run(|graph, rows| {
        let zero = graph.number(0.0);
        let is_not_negative = graph.at_least(rows, zero);
        let is_four = {
            let four = graph.number(4.0);
            graph.equal(rows, four)
        };
        let marks = [is_not_negative, is_four].map(|truth| graph.cast(truth, Element::Float));
        graph.concat(&marks, 1)
    });
    assert_close(
        &got,
        &[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0],
    );
}

/// One map of 4 × 4, from 0 to 15 times the first number of a sample, of which 1 and 0.5 are left.
fn map(graph: &mut Graph, rows: Value) -> Value {
    let first = graph.narrow(rows, 1, 0, 1);
    let places = graph.floats(
        "places",
        (0..16).map(|place| place as f32).collect(),
        &[1, 16],
    );
    let flat = graph.affine(first, places, None);
    graph.reshape(flat, &[1, 4, 4])
}

#[test]
fn maps_are_convolved_pooled_and_normalised() {
    let got = run(|graph, rows| {
        let map = map(graph, rows);
        let kernels = graph.floats(
            "kernels",
            vec![0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            &[1, 1, 3, 3],
        );
        let bias = graph.floats("bias", vec![100.0], &[1]);
        let all = graph.conv(map, (kernels, Some(bias)), 1, [1, 1]);
        let some = graph.conv(map, (kernels, None), 2, [0, 0]);
        let (all, some) = (graph.flat(all), graph.flat(some));
        graph.concat(&[all, some], 1)
    });
    // Every place and the one below to the right, where there is one.
    assert_close(&got[..4], &[105.0, 107.0, 109.0, 103.0]);
    assert_close(&got[12..17], &[112.0, 113.0, 114.0, 115.0, 5.0 + 10.0]);
    assert_eq!(got.len(), 2 * 17);
    let got = run(|graph, rows| {
        let map = map(graph, rows);
        let pooled = [
            graph.max_pool(map, 2),
            graph.average_pool(map, 2),
            graph.max_pool(map, 3),
        ];
        let norms = [
            ("scale", 2.0),
            ("shift", 1.0),
            ("mean", 3.0),
            ("variance", 4.0),
        ]
        .map(|(name, value)| graph.floats(name, vec![value], &[1]));
        let normed = graph.batch_norm(map, norms, 0.0);
        // Of negative numbers, places beyond the edge would be the largest if they were zero.
        let minus = graph.floats("minus", vec![-1.0], &[1]);
        let negative = graph.mul(map, minus);
        let overlapping = graph.max_pool_by(
            negative,
            Window {
                side: 3,
                stride: 1,
                padding: 1,
            },
        );
        let flat = [pooled.as_slice(), &[normed, overlapping]].concat();
        let flat: Vec<Value> = flat.into_iter().map(|value| graph.flat(value)).collect();
        graph.concat(&flat, 1)
    });
    assert_close(
        &got[..9],
        &[5.0, 7.0, 13.0, 15.0, 2.5, 4.5, 10.5, 12.5, 10.0],
    );
    // (x - 3) / 2 · 2 + 1 = x - 2
    assert_close(&got[9..12], &[-2.0, -1.0, 0.0]);
    // The largest of each place and its neighbours, the smallest before the sign.
    assert_close(&got[25..30], &[0.0, 0.0, -1.0, -2.0, 0.0]);
}

#[test]
fn shapes_in_between_and_what_nobody_needs_are_left_out() {
    let mut graph = Graph::default();
    let rows = graph.input("rows", Element::Float, &[4]);
    let square = graph.reshape(rows, &[2, 2]);
    let row = graph.reshape(square, &[1, 4]);
    assert_eq!(graph.reshape(row, &[4]), rows);
    let useless = graph.floats("useless", vec![5.0; 1000], &[1000]);
    let column = graph.reshape(row, &[4, 1]);
    let relu = graph.relu(column);
    let _ = graph.add(useless, useless);
    let file = graph
        .finish("test", ("made", relu), &[("classes", "two".into())])
        .unwrap();
    let count = |word: &str| {
        file.windows(word.len())
            .filter(|part| *part == word.as_bytes())
            .count()
    };
    assert!(file.len() < 500, "{} bytes", file.len());
    assert_eq!(
        [
            count("Reshape"),
            count("Relu"),
            count("Add"),
            count("classes")
        ],
        [3, 1, 0, 1]
    );
}

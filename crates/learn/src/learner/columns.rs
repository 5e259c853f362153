//! The treatment of raw columns as a part of a graph: what [`fednode_data::table::Treatment::apply`] computes.
//!
//! ```text
//! rows [N, columns] ─┬─► numbers: (x - centre) · factor, cut ─┐
//!                    ├─► values as they are                  ─┤
//!                    ├─► levels: a row of zeros and a one     ├─► side by side ─► in the order of the features
//!                    └─► marks of gaps                       ─┘
//! ```
//!
//! The treatment computes with 64 bits and a graph with 32. What is lost is the same for both, except where nearly equal
//! numbers are subtracted: a centre is therefore two numbers, the second being what rounding takes from the first.

use fednode_data::table::{Described, Made};
use fednode_onnx::{Element, Graph, Value};

/// Features that were made together, and where each belongs among all features.
struct Placed {
    value: Value,
    places: Vec<usize>,
}

/// Which columns are treated alike, and the place of each one's feature.
#[derive(Default)]
struct Group {
    columns: Vec<usize>,
    places: Vec<usize>,
}

impl Group {
    fn push(&mut self, column: usize, place: usize) {
        self.columns.push(column);
        self.places.push(place);
    }
}

/// Writes the features of rows into a graph.
pub(super) fn emit(columns: &[Described], graph: &mut Graph, rows: Value) -> Value {
    let (mut plain, mut marks, mut made) = (Group::default(), Group::default(), Vec::new());
    let (mut numbers, mut logarithms) = (Vec::new(), Vec::new());
    let (mut fillings, mut place) = (Vec::new(), 0);
    for (column, described) in columns.iter().enumerate() {
        match &described.made {
            Made::Levels { places, filled } => {
                made.push(emit_levels(graph, rows, (column, place), places, *filled));
                place += places.len();
            }
            Made::AsItIs { filled } => {
                plain.push(column, place);
                fillings.push(*filled);
                place += 1;
            }
            Made::Scaled { of_logarithm, .. } => {
                let kind = if *of_logarithm {
                    &mut logarithms
                } else {
                    &mut numbers
                };
                kind.push((column, place, &described.made));
                place += 1;
            }
        }
        if described.marks_gaps {
            marks.push(column, place);
            place += 1;
        }
    }
    made.extend(emit_scaled(graph, rows, &numbers, |_, values| values));
    made.extend(emit_scaled(graph, rows, &logarithms, emit_logarithm));
    made.extend((!plain.columns.is_empty()).then(|| {
        let values = graph.columns(rows, &plain.columns);
        filled(graph, values, values, fillings, plain.places)
    }));
    made.extend((!marks.columns.is_empty()).then(|| {
        let values = graph.columns(rows, &marks.columns);
        let gaps = graph.is_nan(values);
        Placed {
            value: graph.cast(gaps, Element::Float),
            places: marks.places,
        }
    }));
    in_order(graph, &made)
}

/// Puts features side by side, each at its place.
fn in_order(graph: &mut Graph, made: &[Placed]) -> Value {
    let values: Vec<Value> = made.iter().map(|made| made.value).collect();
    let all = graph.concat(&values, 1);
    let places: Vec<usize> = made.iter().flat_map(|made| made.places.clone()).collect();
    let mut order = vec![0; places.len()];
    for (at, place) in places.into_iter().enumerate() {
        order[place] = at;
    }
    graph.columns(all, &order)
}

/// Takes what fills a gap where the value is one.
fn filled(
    graph: &mut Graph,
    values: Value,
    features: Value,
    fillings: Vec<f32>,
    places: Vec<usize>,
) -> Placed {
    let gaps = graph.is_nan(values);
    let width = fillings.len();
    let fillings = graph.floats("filled", fillings, &[width]);
    let value = graph.choose(gaps, fillings, features);
    Placed { value, places }
}

/// Centres, scales and cuts numbers, or what `prepare` makes of them.
fn emit_scaled(
    graph: &mut Graph,
    rows: Value,
    columns: &[(usize, usize, &Made)],
    prepare: impl Fn(&mut Graph, Value) -> Value,
) -> Option<Placed> {
    let width = columns.len();
    let [
        mut centres,
        mut rests,
        mut factors,
        mut least,
        mut most,
        mut fillings,
    ] = [const { Vec::<f32>::new() }; 6];
    for (_, _, made) in columns {
        if let Made::Scaled {
            centre,
            factor,
            bounds,
            filled,
            ..
        } = made
        {
            centres.push(*centre as f32);
            rests.push((centre - f64::from(*centre as f32)) as f32);
            factors.push(*factor as f32);
            least.push(bounds[0] as f32);
            most.push(bounds[1] as f32);
            fillings.push(*filled);
        }
    }
    let numbers: Vec<usize> = columns.iter().map(|(column, _, _)| *column).collect();
    let places = columns.iter().map(|(_, place, _)| *place).collect();
    (width > 0).then(|| {
        let raw = graph.columns(rows, &numbers);
        let values = prepare(graph, raw);
        let mut row = |name: &str, values| graph.floats(name, values, &[width]);
        let (centres, rests) = (row("centre", centres), row("centre.rest", rests));
        let (factors, bounds) = (
            row("factor", factors),
            [row("least", least), row("most", most)],
        );
        let centred = graph.sub(values, centres);
        let centred = graph.sub(centred, rests);
        let scaled = graph.mul(centred, factors);
        let cut = graph.larger(scaled, bounds[0]);
        let cut = graph.smaller(cut, bounds[1]);
        filled(graph, raw, cut, fillings, places)
    })
}

/// Writes `sign(x) · ln(1 + |x|)`. Of a small x, `1 + x` keeps little, so the logarithm is divided by what was kept and
/// multiplied by what was meant.
fn emit_logarithm(graph: &mut Graph, values: Value) -> Value {
    let amounts = graph.abs(values);
    let more = graph.add_number(amounts, 1.0);
    let kept = graph.add_number(more, -1.0);
    let logarithms = graph.log(more);
    let share = graph.div(amounts, kept);
    let exact = graph.mul(logarithms, share);
    let zero = graph.number(0.0);
    let is_nothing = graph.equal(kept, zero);
    let logarithms = graph.choose(is_nothing, amounts, exact);
    let signs = graph.sign(values);
    graph.mul(logarithms, signs)
}

/// Looks up the row of zeros and a one that belongs to a level; the last row is that of a gap.
fn emit_levels(
    graph: &mut Graph,
    rows: Value,
    (column, place): (usize, usize),
    places: &[usize],
    filled: usize,
) -> Placed {
    let width = places.len();
    let row = |place: usize| (0..width).map(move |at| f32::from(u8::from(at == place)));
    let table = places
        .iter()
        .copied()
        .chain([filled])
        .flat_map(row)
        .collect();
    let table = graph.floats("levels", table, &[width + 1, width]);
    let values = graph.columns(rows, &[column]);
    let levels = graph.clip(values, [0.0, (width - 1) as f64]);
    let (gaps, last) = (graph.is_nan(values), graph.number(width as f64));
    let levels = graph.choose(gaps, last, levels);
    let levels = graph.cast(levels, Element::Int);
    let ones = graph.look_up(table, levels);
    Placed {
        value: graph.flat(ones),
        places: (place..place + width).collect(),
    }
}

//! A pool that is served: the own module, the foreign ones that were kept, and the gate over them.
//!
//! It is saved with the node. The gate lies under `pool.gate.`. The foreign members lie in order under
//! `pool.members.<i>.` with the names of a module's parameters. The own module, number 0, is in the node's own parts.
//! Where gate inputs are standardised there are `pool.input.mean` and `pool.input.deviation`, too. What else a
//! prediction depends on is remembered ([`Remembered`]); older states have it as the arrays `pool.top_k`,
//! `pool.renormalize`, `pool.sees_samples` and `pool.first_relu`.

use burn::tensor::{Device, Tensor};
use fednode_core::{Layout, LayoutMismatch, ParamSet};
use fednode_onnx::{Graph, Value};
use serde::{Deserialize, Serialize};

use super::gate::{self, Gate, GateKind, Selection, Standard};
use super::settings::GateInput;
use crate::algorithm::{Algorithm, Modular, Opened, Output, Part};
use crate::gate::emit_mix;
use crate::memory::Memory;
use crate::model::{Activation, Net};
use crate::weights::Weights;

/// What everything of a pool is saved under.
pub(crate) const PREFIX: &str = "pool.";
const TOP_K: &str = "pool.top_k";
const RENORMALIZE: &str = "pool.renormalize";
const SEES_SAMPLES: &str = "pool.sees_samples";
const FIRST_RELU: &str = "pool.first_relu";
/// Has as many values as there are members.
const LAST_BIAS: &str = "pool.gate.6.bias";
/// Arrays of a pool besides its members, at most: four layers, four flags, mean and deviation.
pub(crate) const MAX_OTHER_TENSORS: usize = 14;

/// The weights of one module's parts.
pub(crate) type Member = Vec<Weights>;

/// What is served.
pub(crate) struct Mixture {
    pub(crate) gate: Gate,
    /// The foreign members; the own one comes before them and is the algorithm's.
    pub(crate) foreign: Vec<Member>,
}

impl Mixture {
    /// Runs a batch, `[batch, features]` to logits `[batch, classes]`.
    pub(crate) fn forward(
        &self,
        algorithm: &dyn Algorithm,
        modular: &dyn Modular,
        own: &Member,
        inputs: Tensor<2>,
    ) -> Tensor<2> {
        let Opened {
            gate_input,
            module_input,
            side,
        } = modular.open(inputs.clone());
        let gate_input = gate::input(self.gate.kind.input, algorithm, &inputs, gate_input);
        let shares = self.gate.shares(&self.gate.weights, gate_input);
        let members = std::iter::once(own).chain(&self.foreign);
        let outputs = members
            .map(|member| modular.run_module(member, module_input.clone()))
            .collect();
        modular.close(side, gate::mix(shares, Tensor::stack(outputs, 1)))
    }

    /// Writes into a graph what [`Self::forward`] computes.
    fn emit(
        &self,
        algorithm: &dyn Algorithm,
        modular: &dyn Modular,
        graph: &mut Graph,
        inputs: Value,
    ) -> Value {
        let Opened {
            gate_input,
            module_input,
            side,
        } = modular.emit_open(graph, inputs);
        let seen = [inputs, gate_input];
        let gate_input = gate::emit_input(self.gate.kind.input, algorithm, graph, seen);
        let shares = self.gate.emit_shares(graph, gate_input);
        let own = own(algorithm, modular);
        let members = std::iter::once(&own).chain(&self.foreign);
        let outputs: Vec<Value> = members
            .map(|member| modular.emit_module(member, graph, module_input))
            .collect();
        let mixed = emit_mix(graph, shares, &outputs);
        modular.emit_close(graph, side, mixed)
    }

    /// Returns what is remembered besides numbers.
    pub(crate) fn memory(&self) -> Memory {
        Memory::of(&Remembered {
            kind: self.gate.kind,
            selection: self.gate.selection,
        })
    }

    /// Returns the numbers that [`Self::load`] needs besides the node's own parts.
    pub(crate) fn save(&self, parts: &[Part]) -> ParamSet {
        let Gate {
            net,
            weights,
            standard,
            ..
        } = &self.gate;
        let mut params = weights.save(net);
        let mut add = |prefix: &str, more: ParamSet| {
            let added = params.extend_prefixed(prefix, more);
            added.expect("names are distinct and were bounded when the pool was assembled");
        };
        if let Some(Standard { mean, deviation }) = standard {
            let arrays = Weights::new(vec![mean.clone(), deviation.clone()]);
            add("", arrays.save(&Standard::net(net.n_inputs())));
        }
        for (at, member) in (1..).zip(&self.foreign) {
            add(&member_prefix(at), save(parts, member));
        }
        params
    }

    /// Reads a pool back, for a module of these parts; `width` says how wide is what a gate sees.
    ///
    /// # Errors
    /// Names the first array that is missing, too many or of another shape.
    pub(crate) fn load(
        params: &ParamSet,
        memory: Option<Remembered>,
        parts: &[Part],
        width: impl Fn(GateInput) -> usize,
        device: &Device,
    ) -> Result<Self, LayoutMismatch> {
        let members = params
            .get(LAST_BIAS)
            .map_or(1, |bias| bias.values().len().max(1));
        let (Remembered { kind, selection }, older) = match memory {
            Some(memory) => (memory, Layout::new()),
            None => Remembered::of_arrays(params),
        };
        let arrays = GateArrays::of(params, kind, width(kind.input), members);
        let mut expected = arrays.layout();
        expected.extend(older);
        for at in 1..members {
            let named = |(name, shape): (String, Vec<usize>)| (member_prefix(at) + &name, shape);
            expected.extend(layout(parts).into_iter().map(named));
        }
        params.check_layout(&expected)?;
        let foreign =
            (1..members).map(|at| load(parts, &params.strip_prefix(&member_prefix(at)), device));
        Ok(Self {
            gate: arrays.load(params, kind, selection, device)?,
            foreign: foreign.collect::<Result<_, _>>()?,
        })
    }
}

/// The arrays that a gate is saved as.
struct GateArrays {
    net: Net,
    /// Mean and deviation, where gate inputs are standardised.
    standard: Option<Net>,
}

impl GateArrays {
    /// Finds out which ones a saved gate has.
    fn of(params: &ParamSet, kind: GateKind, inputs: usize, members: usize) -> Self {
        let standard = Standard::net(inputs);
        let mut names = standard.layout().into_keys();
        let is_standardised = names.any(|name| params.get(&name).is_some());
        Self {
            net: gate::net(kind, inputs, members, 0.0),
            standard: is_standardised.then_some(standard),
        }
    }

    fn layout(&self) -> Layout {
        let mut layout = self.net.layout();
        layout.extend(self.standard.iter().flat_map(Net::layout));
        layout
    }

    /// Reads them from parameters that have this layout.
    fn load(
        self,
        params: &ParamSet,
        kind: GateKind,
        selection: Selection,
        device: &Device,
    ) -> Result<Gate, LayoutMismatch> {
        let read = |net: &Net| Weights::load(net, &pick(params, "", &net.layout()), device);
        let standard = self.standard.as_ref().map(read).transpose()?;
        Ok(Gate {
            kind,
            weights: read(&self.net)?,
            net: self.net,
            selection,
            standard: standard.map(|arrays| Standard {
                mean: arrays.tensor(0),
                deviation: arrays.tensor(1),
            }),
        })
    }
}

/// What a pool's prediction depends on besides numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    kind: GateKind,
    selection: Selection,
}

impl Remembered {
    /// Reads the arrays of an older state; returns their layout with what they say.
    fn of_arrays(params: &ParamSet) -> (Self, Layout) {
        let value = |name: &str| params.get(name).map_or(0.0, |tensor| tensor.values()[0]);
        let has = |name: &str| params.get(name).is_some();
        let input = if has(SEES_SAMPLES) {
            GateInput::Samples
        } else {
            GateInput::Features
        };
        let first = if has(FIRST_RELU) {
            Activation::Relu
        } else {
            Activation::LeakyRelu
        };
        let marks = [SEES_SAMPLES, FIRST_RELU]
            .into_iter()
            .filter(|name| has(name));
        let names = [TOP_K, RENORMALIZE].into_iter().chain(marks);
        let remembered = Self {
            kind: GateKind { input, first },
            selection: Selection {
                top_k: value(TOP_K) as usize,
                renormalizes: value(RENORMALIZE) > 0.0,
            },
        };
        (
            remembered,
            names.map(|name| (name.to_owned(), vec![1])).collect(),
        )
    }
}

fn member_prefix(at: usize) -> String {
    format!("{PREFIX}members.{at}.")
}

/// What predicts: an algorithm, with a pool or without.
#[derive(Clone, Copy)]
pub(crate) struct Predictor<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) pool: Option<&'a Mixture>,
}

impl Predictor<'_> {
    /// Runs a batch. A pool's prediction is nobody's expert's.
    pub(crate) fn forward(&self, inputs: Tensor<2>) -> Output {
        match (self.pool, self.algorithm.modular()) {
            (Some(pool), Some(modular)) => {
                let logits = pool.forward(
                    self.algorithm,
                    modular,
                    &own(self.algorithm, modular),
                    inputs,
                );
                Output {
                    logits,
                    chosen: None,
                    n_experts: 0,
                }
            }
            _ => self.algorithm.forward(inputs),
        }
    }

    /// Writes into a graph the logits that [`Self::forward`] computes.
    pub(crate) fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        match (self.pool, self.algorithm.modular()) {
            (Some(pool), Some(modular)) => pool.emit(self.algorithm, modular, graph, inputs),
            _ => self.algorithm.emit(graph, inputs),
        }
    }
}

/// Returns the parts of an algorithm's module.
pub(crate) fn parts<'a>(algorithm: &'a dyn Algorithm, modular: &dyn Modular) -> &'a [Part] {
    &algorithm.parts()[modular.module().parts]
}

/// Returns the weights of the own module.
pub(crate) fn own(algorithm: &dyn Algorithm, modular: &dyn Modular) -> Member {
    parts(algorithm, modular)
        .iter()
        .map(|part| part.weights.clone())
        .collect()
}

/// Returns names and shapes of a module's parameters; each part's have its prefix, as in a node's state.
pub(crate) fn layout(parts: &[Part]) -> Layout {
    let named = |part: &Part| {
        let prefix = part.prefix();
        part.layout()
            .into_iter()
            .map(move |(name, shape)| (format!("{prefix}{name}"), shape))
            .collect::<Layout>()
    };
    parts.iter().flat_map(named).collect()
}

/// Returns a module's parameters.
pub(crate) fn save(parts: &[Part], member: &Member) -> ParamSet {
    let mut params = ParamSet::new();
    for (part, weights) in parts.iter().zip(member) {
        let saved = params.extend_prefixed(&part.prefix(), weights.save(&part.net));
        saved.expect("the parts of a module have distinct names");
    }
    params
}

/// Loads a module's parameters.
///
/// # Errors
/// Names the first parameter that does not fit.
pub(crate) fn load(
    parts: &[Part],
    params: &ParamSet,
    device: &Device,
) -> Result<Member, LayoutMismatch> {
    params.check_layout(&layout(parts))?;
    let one = |part: &Part| {
        Weights::load(
            &part.net,
            &pick(params, &part.prefix(), &part.layout()),
            device,
        )
    };
    parts.iter().map(one).collect()
}

/// Picks the parameters of a layout, which all must be there under the prefix.
fn pick(params: &ParamSet, prefix: &str, layout: &Layout) -> ParamSet {
    let mut picked = ParamSet::new();
    for (name, shape) in layout {
        let tensor = params
            .get(&format!("{prefix}{name}"))
            .expect("the layout was checked");
        picked
            .insert(name.as_str(), shape, tensor.values().to_vec())
            .expect("a layout is a valid set");
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::super::settings::BiasStart;
    use super::*;
    use crate::algorithm::testing::{random, trained};
    use crate::random::{Purpose, stream};
    use crate::weights::values;

    const MEMBERS: usize = 3;
    const KIND: GateKind = GateKind {
        input: GateInput::Features,
        first: Activation::LeakyRelu,
    };

    /// Members whose parameters are the own ones times 2, 3, …, gated by a gate that is changed as told.
    fn mixture(algorithm: &dyn Algorithm, change: impl Fn(&mut Vec<Tensor<1>>)) -> Mixture {
        let (modular, device) = (algorithm.modular().unwrap(), Device::flex());
        let net = gate::net(
            KIND,
            modular.open(random(1, 1)).gate_input.dims()[1],
            MEMBERS,
            0.0,
        );
        let weights = gate::initial(
            &net,
            BiasStart::Zeros,
            &mut stream(Purpose::PoolGate, [1, 0, 0]),
            &device,
        );
        let mut tensors: Vec<Tensor<1>> = weights.tensors().cloned().collect();
        change(&mut tensors);
        let scaled = |factor: f64| {
            let scale = |weights: &Weights| {
                Weights::new(
                    weights
                        .tensors()
                        .map(|t| t.clone().mul_scalar(factor))
                        .collect(),
                )
            };
            own(algorithm, modular).iter().map(scale).collect()
        };
        let selection = Selection {
            top_k: 2,
            renormalizes: true,
        };
        let gate = Gate {
            kind: KIND,
            net,
            weights: Weights::new(tensors),
            selection,
            standard: None,
        };
        Mixture {
            gate,
            foreign: vec![scaled(2.0), scaled(3.0)],
        }
    }

    fn logits(algorithm: &dyn Algorithm, pool: Option<&Mixture>) -> Vec<f32> {
        values(&Predictor { algorithm, pool }.forward(random(7, 5)).logits)
    }

    #[test]
    fn gate_of_the_own_module_alone_is_the_identity() {
        for (name, algorithm) in trained() {
            let mut alone = [0.0; MEMBERS];
            alone[0] = 1e9;
            let bias = |tensors: &mut Vec<Tensor<1>>| {
                tensors[7] = Tensor::from_floats(alone, &Device::flex())
            };
            let pool = mixture(algorithm.as_ref(), bias);
            assert_eq!(
                logits(algorithm.as_ref(), Some(&pool)),
                logits(algorithm.as_ref(), None),
                "{name}"
            );
            let pool = mixture(algorithm.as_ref(), |_| ());
            assert_ne!(
                logits(algorithm.as_ref(), Some(&pool)),
                logits(algorithm.as_ref(), None),
                "{name}"
            );
        }
    }

    #[test]
    fn a_pool_of_one_is_its_module_bit_for_bit() {
        for (name, algorithm) in trained() {
            let modular = algorithm.modular().unwrap();
            let net = gate::net(
                KIND,
                modular.open(random(1, 1)).gate_input.dims()[1],
                1,
                0.0,
            );
            let weights = gate::initial(
                &net,
                BiasStart::Zeros,
                &mut stream(Purpose::PoolGate, [1, 0, 0]),
                &Device::flex(),
            );
            let selection = Selection {
                top_k: 0,
                renormalizes: false,
            };
            let gate = Gate {
                kind: KIND,
                net,
                weights,
                selection,
                standard: None,
            };
            let pool = Mixture {
                gate,
                foreign: Vec::new(),
            };
            assert_eq!(
                logits(algorithm.as_ref(), Some(&pool)),
                logits(algorithm.as_ref(), None),
                "{name}"
            );
        }
    }

    #[test]
    fn survives_being_saved_bit_for_bit() {
        for (name, algorithm) in trained() {
            let (modular, device) = (algorithm.modular().unwrap(), Device::flex());
            let mut pool = mixture(algorithm.as_ref(), |_| ());
            let width = pool.gate.net.n_inputs();
            if name == "fedgh" {
                let rows = [vec![0.5; width], vec![0.25; width]];
                pool.gate.standard = Standard::of(rows.into_iter().map(Ok), width, &device).ok();
            }
            let parts = parts(algorithm.as_ref(), modular);
            let saved = ParamSet::decode(&pool.save(parts).to_bytes()).unwrap();
            let loaded =
                Mixture::load(&saved, pool.memory().read().ok(), parts, |_| width, &device)
                    .unwrap();
            assert_eq!(
                (loaded.gate.kind, loaded.gate.selection),
                (pool.gate.kind, pool.gate.selection)
            );
            assert_eq!(
                logits(algorithm.as_ref(), Some(&loaded)),
                logits(algorithm.as_ref(), Some(&pool)),
                "{name}"
            );
            assert!(
                Mixture::load(
                    &saved,
                    pool.memory().read().ok(),
                    parts,
                    |_| width + 1,
                    &device
                )
                .is_err()
            );
            let mut more = saved.clone();
            more.insert("pool.members.7.fc.weight", &[1], vec![0.0])
                .unwrap();
            assert!(matches!(
                Mixture::load(&more, pool.memory().read().ok(), parts, |_| width, &device),
                Err(LayoutMismatch::Unexpected(_))
            ));
        }
    }

    #[test]
    fn a_gate_of_another_form_survives_being_saved_bit_for_bit() {
        for (name, algorithm) in trained() {
            let (modular, device) = (algorithm.modular().unwrap(), Device::flex());
            let mut pool = mixture(algorithm.as_ref(), |_| ());
            let kind = GateKind {
                input: GateInput::Samples,
                first: Activation::Relu,
            };
            let width = random(1, 1).dims()[1];
            let net = gate::net(kind, width, MEMBERS, 0.0);
            let weights = gate::initial(
                &net,
                BiasStart::Uniform,
                &mut stream(Purpose::PoolGate, [2, 0, 0]),
                &device,
            );
            pool.gate = Gate {
                kind,
                net,
                weights,
                ..pool.gate
            };
            let parts = parts(algorithm.as_ref(), modular);
            let saved = ParamSet::decode(&pool.save(parts).to_bytes()).unwrap();
            let of = |input| {
                if input == GateInput::Samples {
                    width
                } else {
                    0
                }
            };
            let loaded =
                Mixture::load(&saved, pool.memory().read().ok(), parts, of, &device).unwrap();
            assert_eq!(loaded.gate.kind, kind, "{name}");
            let mut older = saved.clone();
            for (name, value) in [
                (TOP_K, 2.0),
                (RENORMALIZE, 1.0),
                (SEES_SAMPLES, 1.0),
                (FIRST_RELU, 1.0),
            ] {
                older.insert(name, &[1], vec![value]).unwrap();
            }
            let read = Mixture::load(&older, None, parts, of, &device).unwrap();
            assert_eq!(
                read.memory(),
                pool.memory(),
                "{name}: arrays of an older state"
            );
            let expected = logits(algorithm.as_ref(), Some(&pool));
            assert_eq!(
                logits(algorithm.as_ref(), Some(&loaded)),
                expected,
                "{name}"
            );
            pool.gate.kind.first = Activation::LeakyRelu;
            pool.gate.net = gate::net(pool.gate.kind, width, MEMBERS, 0.0);
            assert_ne!(
                logits(algorithm.as_ref(), Some(&pool)),
                expected,
                "{name}: negative features count"
            );
        }
    }

    #[test]
    fn a_module_survives_being_saved_with_its_parts_kept_apart() {
        for (name, algorithm) in trained() {
            let modular = algorithm.modular().unwrap();
            let (parts, own) = (
                parts(algorithm.as_ref(), modular),
                own(algorithm.as_ref(), modular),
            );
            let saved = save(parts, &own);
            assert_eq!(saved.layout(), layout(parts), "{name}");
            if name == "fedmoe-da" {
                let names: Vec<&str> = saved.iter().map(|(name, _)| name).collect();
                assert!(
                    names.contains(&"gate.weight") && names.contains(&"experts.1.fc.weight"),
                    "{names:?}"
                );
            }
            let loaded = load(parts, &saved, &Device::flex()).unwrap();
            assert_eq!(save(parts, &loaded), saved);
            let numbers = |member: &Member| {
                member
                    .iter()
                    .flat_map(|w| w.tensors().flat_map(values))
                    .collect::<Vec<f32>>()
            };
            assert_eq!(numbers(&loaded), numbers(&own));
        }
    }
}

//! `declared`: the model that `model.layers` of the spec describes, layer by layer.
//!
//! ```text
//! text ──core──► layers ──here──► blocks with shapes ── + a fully connected layer to the classes, `fc`
//! ```
//!
//! What one operation can do is one layer: a convolution with its ReLU and pooling, a fully connected layer or a
//! normalisation with its activation. A convolution and its normalisation are one block, which cuts leave whole. So a
//! declaration of `cnn` or `resnet-8` is that model, down to the last bit. A convolution before a normalisation has no bias,
//! as in PyTorch's models. Parameters are called `layers.N` in the order of the text, shortcuts after their body.

use std::fmt::Display;
use std::sync::LazyLock;

use fednode_core::spec::{Architecture, ConvSpec, DECLARED, LayerSpec, MOST_LAYERS};
use fednode_core::{ConfigError, MAX_TENSORS};
use fednode_onnx::Window;

use super::layer::{
    Activation, AveragePool, BatchNorm, Conv, Convolution, Dropout, GroupNorm, Linear, MaxPool,
    Pointwise,
};
use super::net::{Block, Net, leaf};
use super::{Reads, Row};

pub(super) const ROW: Row = Row {
    name: DECLARED,
    summary: "the layers that `model.layers` lists, and one to the classes",
    reads: Reads::Numbers,
    layers,
};

/// Numbers that a layer may make of one sample: 64 MB of a batch of one.
const MOST_FEATURES: usize = 1 << 24;
/// Parameters of a whole model: 1 GB.
const MOST_PARAMETERS: usize = 1 << 28;
/// Tensors of all experts of a node: half of what a file may hold, for what else there is.
const MOST_TENSORS: usize = MAX_TENSORS / 2;
/// Names of layers in parameter files. A residual layer has two more, for its shortcut.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    (0..3 * MOST_LAYERS)
        .map(|n| format!("layers.{n}"))
        .collect()
});

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    if spec.layers.is_empty() {
        return Err(ConfigError(
            "model `declared` needs `model.layers`, for example \"conv 16, batch-norm, relu, max-pool 2, linear 64, relu\""
                .to_owned(),
        ));
    }
    let mut builder = Builder {
        maps: spec.input,
        named: 0,
        parameters: 0,
    };
    let mut blocks = builder.chain(&spec.layers.0)?;
    let inputs = builder.width();
    builder.grow(&"the last layer", spec.classes, inputs + 1)?;
    let experts = spec.experts.max(1);
    let tensors = blocks
        .iter()
        .map(|block| Net::new(vec![block.clone()]).parameters().len());
    let tensors = tensors.sum::<usize>() * experts;
    if tensors > MOST_TENSORS {
        let message = format!(
            "`model.layers`: {experts} experts would have {tensors} tensors, more than {MOST_TENSORS}: set `model.experts`"
        );
        return Err(ConfigError(message));
    }
    blocks.push(leaf(Linear {
        name: "fc",
        inputs,
        outputs: spec.classes,
        activation: Activation::Identity,
        bias: true,
    }));
    Ok(blocks)
}

/// Whether a convolution has a bias. Before a normalisation it has none: that would remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bias {
    None,
    Learned,
}

/// Makes blocks one after the other, and knows what shape the next one is given.
struct Builder {
    /// Channels, height and width of what was made so far; features without places are channels.
    maps: [usize; 3],
    named: usize,
    parameters: usize,
}

impl Builder {
    fn width(&self) -> usize {
        self.maps.iter().product()
    }

    fn name(&mut self) -> &'static str {
        self.named += 1;
        &NAMES[self.named - 1]
    }

    /// Goes on with what a layer makes.
    fn become_maps(&mut self, layer: &dyn Display, maps: [usize; 3]) -> Result<(), ConfigError> {
        let features = maps.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
        if features.is_none_or(|features| features > MOST_FEATURES) {
            let message = format!("it would make more than {MOST_FEATURES} numbers of one sample");
            return Err(fault(layer, &message));
        }
        self.maps = maps;
        Ok(())
    }

    /// Counts the parameters of so many units before any is made.
    fn grow(
        &mut self,
        layer: &dyn Display,
        units: usize,
        of_each: usize,
    ) -> Result<(), ConfigError> {
        let more = units.saturating_mul(of_each);
        self.parameters = self.parameters.saturating_add(more);
        if self.parameters <= MOST_PARAMETERS {
            return Ok(());
        }
        let message = format!("the model would have more than {MOST_PARAMETERS} parameters");
        Err(fault(layer, &message))
    }

    fn chain(&mut self, layers: &[LayerSpec]) -> Result<Vec<Block>, ConfigError> {
        let (mut blocks, mut rest) = (Vec::new(), layers);
        while let Some((layer, after)) = rest.split_first() {
            let (block, taken) = self.block(layer, after)?;
            blocks.push(block);
            rest = &after[taken..];
        }
        Ok(blocks)
    }

    /// Makes the block of a layer, and tells how many of those after it are part of it.
    fn block(
        &mut self,
        layer: &LayerSpec,
        after: &[LayerSpec],
    ) -> Result<(Block, usize), ConfigError> {
        let (activation, taken) = activation_of(after);
        let maps = self.maps;
        let block = match layer {
            LayerSpec::Conv(conv) => return self.convolution(*conv, after),
            LayerSpec::Linear { units } => {
                let inputs = self.width();
                self.grow(layer, *units, inputs + 1)?;
                self.become_maps(layer, [*units, 1, 1])?;
                leaf(Linear {
                    name: self.name(),
                    inputs,
                    outputs: *units,
                    activation,
                    bias: true,
                })
            }
            LayerSpec::BatchNorm | LayerSpec::GroupNorm { .. } => self.norm(layer, activation)?,
            LayerSpec::Residual(body) => self.residual(layer, body, activation)?,
            LayerSpec::Relu | LayerSpec::LeakyRelu => {
                let (activation, _) = activation_of(std::slice::from_ref(layer));
                return Ok((leaf(Pointwise { maps, activation }), 0));
            }
            LayerSpec::MaxPool { side, stride } => {
                return Ok((self.max_pool(layer, *side, *stride)?, 0));
            }
            LayerSpec::MeanPool => {
                self.maps = [maps[0], 1, 1];
                return Ok((leaf(AveragePool { maps }), 0));
            }
            LayerSpec::Dropout { per_mille } => {
                let (width, share) = (self.width(), *per_mille as f64 / 1000.0);
                return Ok((leaf(Dropout { width, share }), 0));
            }
            LayerSpec::Parallel(branches) => return Ok((self.parallel(layer, branches)?, 0)),
        };
        Ok((block, taken))
    }

    /// Makes a convolution with what can be done in one go: ReLU and pooling, or a normalisation and what follows that.
    fn convolution(
        &mut self,
        conv: ConvSpec,
        after: &[LayerSpec],
    ) -> Result<(Block, usize), ConfigError> {
        let [_, height, width] = self.maps;
        if !conv.padded && conv.kernel > height.min(width) {
            let message = format!("it is given maps of {height}x{width}, smaller than its kernel");
            return Err(fault(&conv, &message));
        }
        match after {
            [LayerSpec::Relu, rest @ ..] if conv.stride == 1 => self.fused(conv, rest),
            [
                norm @ (LayerSpec::BatchNorm | LayerSpec::GroupNorm { .. }),
                rest @ ..,
            ] => {
                let convolution = self.plain(conv, self.maps, Bias::None)?;
                let (activation, taken) = activation_of(rest);
                let norm = self.norm(norm, activation)?;
                Ok((Block::Chain(vec![leaf(convolution), norm]), 1 + taken))
            }
            _ => Ok((leaf(self.plain(conv, self.maps, Bias::Learned)?), 0)),
        }
    }

    /// Makes a convolution by itself.
    fn plain(
        &mut self,
        conv: ConvSpec,
        input: [usize; 3],
        bias: Bias,
    ) -> Result<Convolution, ConfigError> {
        let ConvSpec {
            maps,
            kernel,
            stride,
            padded,
        } = conv;
        let bias = bias == Bias::Learned;
        self.grow(&conv, maps, input[0] * kernel * kernel + usize::from(bias))?;
        let convolution = Convolution {
            name: self.name(),
            input,
            filters: maps,
            kernel,
            stride,
            padding: if padded { kernel / 2 } else { 0 },
            bias,
        };
        self.become_maps(&conv, convolution.output())?;
        Ok(convolution)
    }

    /// Makes a convolution with its ReLU, and with the pooling that follows if its windows do not overlap.
    fn fused(
        &mut self,
        conv: ConvSpec,
        after: &[LayerSpec],
    ) -> Result<(Block, usize), ConfigError> {
        let plain = self.plain(conv, self.maps, Bias::Learned)?;
        let [_, height, width] = self.maps;
        let pool = match after {
            [LayerSpec::MaxPool { side, stride }, ..]
                if side == stride && *side <= height.min(width) =>
            {
                *side
            }
            _ => 1,
        };
        let conv = Conv {
            name: plain.name,
            input: plain.input,
            filters: plain.filters,
            kernel: plain.kernel,
            padding: [plain.padding; 2],
            pool,
        };
        self.maps = conv.output();
        // The ReLU, and the pooling if there is one.
        Ok((leaf(conv), 1 + usize::from(pool > 1)))
    }

    fn norm(&mut self, layer: &LayerSpec, activation: Activation) -> Result<Block, ConfigError> {
        let (name, maps) = (self.name(), self.maps);
        self.grow(layer, maps[0], 2)?;
        let LayerSpec::GroupNorm { groups } = *layer else {
            return Ok(leaf(BatchNorm {
                name,
                maps,
                activation,
            }));
        };
        if !maps[0].is_multiple_of(groups) {
            let message = format!("{} maps cannot be divided into {groups} groups", maps[0]);
            return Err(fault(layer, &message));
        }
        Ok(leaf(GroupNorm {
            name,
            maps,
            groups,
            activation,
        }))
    }

    fn max_pool(
        &mut self,
        layer: &LayerSpec,
        side: usize,
        stride: usize,
    ) -> Result<Block, ConfigError> {
        let window = Window {
            side,
            stride,
            padding: if side == stride { 0 } else { (side - 1) / 2 },
        };
        let [_, height, width] = self.maps;
        if !window.fits(height.min(width)) {
            let message = format!("it is given maps of {height}x{width}, smaller than its window");
            return Err(fault(layer, &message));
        }
        let pool = MaxPool {
            input: self.maps,
            window,
        };
        self.become_maps(layer, pool.output())?;
        Ok(leaf(pool))
    }

    fn residual(
        &mut self,
        layer: &LayerSpec,
        body: &[LayerSpec],
        activation: Activation,
    ) -> Result<Block, ConfigError> {
        let before = self.maps;
        let layers = body;
        let body = self.chain(layers)?;
        let after = self.maps;
        let shortcut = if before == after {
            Vec::new()
        } else {
            self.shortcut(layer, stride_of(layers), before)?
        };
        Ok(Block::Residual {
            body,
            shortcut,
            activation,
        })
    }

    /// Makes a 1×1 convolution with batch normalisation that fits what a body reads to what it makes. It looks at the places
    /// at which the body looks.
    fn shortcut(
        &mut self,
        layer: &LayerSpec,
        stride: usize,
        before: [usize; 3],
    ) -> Result<Vec<Block>, ConfigError> {
        let after = self.maps;
        let leads_there = [1, 2].map(|side| before[side].div_ceil(stride) == after[side]);
        if leads_there != [true; 2] {
            let [[_, height, width], [_, there, across]] = [before, after];
            let message = format!(
                "no 1x1 convolution makes maps of {there}x{across} of {height}x{width} as its layers do"
            );
            return Err(fault(layer, &message));
        }
        let projection = ConvSpec {
            maps: after[0],
            kernel: 1,
            stride,
            padded: true,
        };
        let convolution = self.plain(projection, before, Bias::None)?;
        let norm = self.norm(&LayerSpec::BatchNorm, Activation::Identity)?;
        Ok(vec![leaf(convolution), norm])
    }

    fn parallel(
        &mut self,
        layer: &LayerSpec,
        branches: &[Vec<LayerSpec>],
    ) -> Result<Block, ConfigError> {
        let before = self.maps;
        let (mut made, mut channels, mut places) = (Vec::new(), 0, None);
        for branch in branches {
            self.maps = before;
            made.push(self.chain(branch)?);
            let [of_branch, height, width] = self.maps;
            if let Some((there, across)) = places.filter(|places| *places != (height, width)) {
                let message =
                    format!("its branches make maps of {there}x{across} and of {height}x{width}");
                return Err(fault(layer, &message));
            }
            (channels, places) = (channels + of_branch, Some((height, width)));
        }
        let (height, width) = places.unwrap_or((1, 1));
        self.become_maps(layer, [channels, height, width])?;
        Ok(Block::Parallel(made))
    }
}

/// Returns at every which place layers look.
fn stride_of(layers: &[LayerSpec]) -> usize {
    let of_one = |layer: &LayerSpec| match layer {
        LayerSpec::Conv(conv) => conv.stride,
        LayerSpec::MaxPool { stride, .. } => *stride,
        LayerSpec::Residual(body) => stride_of(body),
        LayerSpec::Parallel(branches) => branches.first().map_or(1, |branch| stride_of(branch)),
        _ => 1,
    };
    layers.iter().map(of_one).product()
}

/// Returns the activation that follows a layer, and how many layers that is.
fn activation_of(after: &[LayerSpec]) -> (Activation, usize) {
    match after.first() {
        Some(LayerSpec::Relu) => (Activation::Relu, 1),
        Some(LayerSpec::LeakyRelu) => (Activation::LeakyRelu, 1),
        _ => (Activation::Identity, 0),
    }
}

fn fault(layer: &dyn Display, message: &str) -> ConfigError {
    ConfigError(format!("`model.layers`: `{layer}`: {message}"))
}

#[cfg(test)]
mod tests;

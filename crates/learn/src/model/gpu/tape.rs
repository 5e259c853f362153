//! The tensor library's tape: how operations of one's own get onto it, whatever the backend.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, BackendTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Int, Shape, Tensor};

/// A backend that tensors can be taken from and given back to.
pub(super) trait Known: Backend {
    /// Returns nothing unless the tensor is made of 32-bit floats on this backend.
    fn operand<const D: usize>(tensor: &Tensor<D>) -> Option<Operand<Self>>;
    /// Returns nothing unless the tensor is on this backend.
    fn indices(tensor: Tensor<1, Int>) -> Option<IntTensor<Self>>;
    fn tensor<const D: usize>(made: Made<Self>) -> Tensor<D>;
}

/// A tensor that an operation takes.
pub(super) struct Operand<B: Backend> {
    pub(super) values: FloatTensor<B>,
    /// Its place on a tape, if it is on one.
    node: Option<NodeGuard>,
}

/// What an operation makes.
pub(super) enum Made<B: Backend> {
    Plain(FloatTensor<B>),
    Recorded(FloatTensor<Autodiff<B>>),
}

macro_rules! known {
    ($backend:ident) => {
        impl Known for burn::backend::$backend {
            fn operand<const D: usize>(tensor: &Tensor<D>) -> Option<Operand<Self>> {
                let (values, node) = match tensor.clone().into_dispatch().kind {
                    DispatchTensorKind::$backend(BackendTensor::Float(values)) => (values, None),
                    DispatchTensorKind::Autodiff(recorded) => {
                        let DispatchTensorKind::$backend(BackendTensor::Autodiff(recorded)) =
                            *recorded
                        else {
                            return None;
                        };
                        let (values, node) = recorded.into_parts();
                        (values, Some(node))
                    }
                    _ => return None,
                };
                (values.dtype() == DType::F32).then_some(Operand { values, node })
            }

            fn indices(tensor: Tensor<1, Int>) -> Option<IntTensor<Self>> {
                tensor.try_into_primitive::<Self>().ok()
            }

            fn tensor<const D: usize>(made: Made<Self>) -> Tensor<D> {
                match made {
                    Made::Plain(values) => Tensor::from_primitive::<Self>(values),
                    Made::Recorded(values) => Tensor::from_primitive::<Autodiff<Self>>(values),
                }
            }
        }
    };
}

#[cfg(feature = "vulkan")]
known!(Cube);
#[cfg(test)]
known!(Flex);

/// Puts an operation on the tape that its operands are on, if any is.
pub(super) fn record<B: Backend, const N: usize, O: Backward<B, N>>(
    operands: [Operand<B>; N],
    step: O,
    state: O::State,
    output: FloatTensor<B>,
) -> Made<B> {
    if operands.iter().all(|operand| operand.node.is_none()) {
        return Made::Plain(output);
    }
    // An operand that is on no tape is a constant.
    let constant = |values| FloatTensor::<Autodiff<B>>::new(values).node();
    let nodes = operands.map(|operand| operand.node.unwrap_or_else(|| constant(operand.values)));
    Made::Recorded(
        match step
            .prepare::<NoCheckpointing>(nodes)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(state, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        },
    )
}

pub(super) fn reshape<B: Backend>(tensor: FloatTensor<B>, shape: &[usize]) -> FloatTensor<B> {
    B::float_reshape(tensor, Shape::from(shape.to_vec()))
}

pub(super) fn transpose<B: Backend>(matrix: FloatTensor<B>) -> FloatTensor<B> {
    let rank = matrix.shape().num_dims();
    B::float_swap_dims(matrix, rank - 2, rank - 1)
}

/// Hands a gradient on to an operand that wants it.
pub(super) fn register<B: Backend>(
    gradients: &mut Gradients,
    operand: Option<NodeId>,
    make: impl FnOnce() -> FloatTensor<B>,
) {
    if let Some(operand) = operand {
        gradients.register::<B>(operand, make());
    }
}

/// Takes the bias, if there is one; nothing if it is of another kind than the rest.
pub(super) fn optional<B: Known>(bias: Option<&Tensor<1>>) -> Option<Option<Operand<B>>> {
    bias.map_or(Some(None), |bias| B::operand(bias).map(Some))
}

/// Names the operands that want a gradient: input, weight and, if there is one, bias.
pub(super) fn parents<const N: usize>(of: [Option<NodeId>; N]) -> [Option<NodeId>; 3] {
    let mut of = of.into_iter();
    [(); 3].map(|()| of.next().flatten())
}

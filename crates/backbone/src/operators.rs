//! The operators that a backbone may use: one row each, with the rule for its shapes.
//!
//! The list is the whitelist twice over. A node without a row is refused, and the runtime is given these operators alone.
//! A new operator is a row here, a rule under `shapes/`, and a case in `tests/data/make.py`.

use rten::OpRegistry;

use crate::shapes::{Rule, arithmetic, constants, layers, layout, parts, products, reductions};

macro_rules! operators {
    ($($operator:ident => $rule:path,)*) => {
        /// Returns the rule for the shapes of an operator, if it is on the list.
        pub(crate) fn rule(operator: &str) -> Option<Rule> {
            match operator {
                // The runtime reads constants while it loads, so they are no operator to it.
                "Constant" => Some(constants::constant),
                $(stringify!($operator) => Some($rule),)*
                _ => None,
            }
        }

        /// Returns the implementations of the listed operators, and no others.
        pub(crate) fn registry() -> OpRegistry {
            rten::op_registry!($($operator),*)
        }
    };
}

operators! {
    Abs => arithmetic::unary,
    Add => arithmetic::add,
    AveragePool => layers::pool,
    BatchNormalization => layers::normalisation,
    Cast => arithmetic::cast,
    Ceil => arithmetic::unary,
    Clip => arithmetic::unary,
    Concat => parts::concat,
    ConstantOfShape => constants::constant_of_shape,
    Conv => layers::conv,
    Div => arithmetic::div,
    Elu => arithmetic::unary,
    Equal => arithmetic::equal,
    Erf => arithmetic::unary,
    Exp => arithmetic::unary,
    Expand => layout::expand,
    Flatten => layout::flatten,
    Floor => arithmetic::unary,
    Gather => parts::gather,
    Gelu => arithmetic::unary,
    Gemm => products::gemm,
    GlobalAveragePool => reductions::global_pool,
    HardSigmoid => arithmetic::unary,
    HardSwish => arithmetic::unary,
    Identity => arithmetic::identity,
    InstanceNormalization => layers::normalisation,
    LayerNormalization => layers::normalisation,
    LeakyRelu => arithmetic::unary,
    Log => arithmetic::unary,
    MatMul => products::mat_mul,
    Max => arithmetic::max,
    MaxPool => layers::pool,
    Min => arithmetic::min,
    Mul => arithmetic::mul,
    Neg => arithmetic::unary,
    PRelu => arithmetic::p_relu,
    Pad => parts::pad,
    Pow => arithmetic::pow,
    Reciprocal => arithmetic::unary,
    ReduceL2 => reductions::reduce,
    ReduceMax => reductions::reduce,
    ReduceMean => reductions::reduce,
    ReduceSum => reductions::reduce,
    Relu => arithmetic::unary,
    Reshape => layout::reshape,
    Shape => constants::shape,
    Sigmoid => arithmetic::unary,
    Slice => parts::slice,
    Softmax => layers::softmax,
    Softplus => arithmetic::unary,
    Split => parts::split,
    Sqrt => arithmetic::unary,
    Squeeze => layout::squeeze,
    Sub => arithmetic::sub,
    Tanh => arithmetic::unary,
    Transpose => layout::transpose,
    Unsqueeze => layout::unsqueeze,
    Where => arithmetic::select,
}

//! Multiply-adds of convolutions and fully connected layers, counted as they run.
//!
//! ```text
//! forward              m = samples of the batch · multiply-adds of the layer for one sample
//! backward, weights    m more if they are recorded
//! backward, input      m more if it is on a tape too
//! ```
//!
//! The backward steps are counted on the way forward: whatever is recorded is differentiated. So a layer that learns, behind
//! others that do, counts three times, the first one twice, and what is frozen once, or not at all where its outputs are
//! kept. What is no such layer (embeddings, pooling, activations, normalisation, losses, the step itself) is not counted:
//! those are a few operations per number, where a layer has hundreds. The unit is that of the papers' tables of "FLOPs"
//! per model (PFL-MoE, pFedMoE); a multiply-add is two floating-point operations.

use std::cell::Cell;

use burn::backend::DispatchTensorKind;
use burn::tensor::Tensor;

thread_local! {
    /// What was counted on this thread since it began: layers are run on the thread that works for a learner, however
    /// many others help with one.
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// Does some work and tells how many multiply-adds its layers took on this thread.
pub(crate) fn counted<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = COUNTED.get();
    let result = work();
    (result, COUNTED.get().wrapping_sub(before))
}

/// Counts a layer that takes so many for one sample.
pub(super) fn count(for_a_sample: u64, input: &Tensor<2>, weight: &Tensor<1>) {
    let times = 1 + u64::from(is_on_tape(weight)) + u64::from(is_on_tape(input));
    let all = (input.dims()[0] as u64)
        .saturating_mul(for_a_sample)
        .saturating_mul(times);
    COUNTED.set(COUNTED.get().wrapping_add(all));
}

fn is_on_tape<const D: usize>(tensor: &Tensor<D>) -> bool {
    matches!(
        tensor.clone().into_dispatch().kind,
        DispatchTensorKind::Autodiff(_)
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use fednode_core::spec::Architecture;

    use super::*;
    use crate::model::{self, Cut, Net};
    use crate::weights::{self, Weights};

    fn net(name: &str, input: [usize; 3]) -> Net {
        model::build(&Architecture {
            name: name.into(),
            input,
            ..Architecture::default()
        })
        .unwrap()
    }

    fn weights(net: &Net) -> Weights {
        Weights::load(net, &weights::initial(net, 1, 0), &Device::flex()).unwrap()
    }

    /// LeNet-5: 28²·6·5² + 10²·16·6·5² + 400·120 + 120·84 + 84·10. The CNN of FedAvg: 24²·32·5² + 8²·64·32·5² +
    /// 1024·512 + 512·10. VGG-16 on 32×32: 313 million, as thop counts them, of which 0.5 are of its last three layers.
    #[test]
    fn models_take_what_is_reckoned_by_hand() {
        assert_eq!(
            net("lenet5", [1, 28, 28]).multiply_adds(),
            117_600 + 240_000 + 48_000 + 10_080 + 840
        );
        assert_eq!(
            net("cnn", [1, 28, 28]).multiply_adds(),
            460_800 + 3_276_800 + 524_288 + 5_120
        );
        assert_eq!(
            net("mlp", [1, 28, 28]).multiply_adds(),
            784 * 200 + 200 * 200 + 200 * 10
        );
        assert_eq!(net("vgg16", [3, 32, 32]).multiply_adds() / 1_000_000, 313);
    }

    #[test]
    fn trainable_layers_count_with_their_gradients() {
        let (front, back) = net("cnn", [1, 28, 28]).split(Cut::Embedding);
        let (first, rest) = (front.multiply_adds(), back.multiply_adds());
        let input = || Tensor::<2>::zeros([3, 784], &Device::flex());
        let run = |front_weights: Weights, back_weights: Weights| {
            counted(|| back.forward(&back_weights, front.forward(&front_weights, input()))).1
        };
        let (plain, recorded) = (
            [weights(&front), weights(&back)],
            [&front, &back].map(|net| weights(net).recorded()),
        );
        assert_eq!(
            run(plain[0].clone(), plain[1].clone()),
            3 * (first + rest),
            "nothing learns"
        );
        assert_eq!(
            run(recorded[0].clone(), recorded[1].clone()),
            3 * (2 * first + 3 * rest),
            "all of it learns"
        );
        let behind_frozen = 3 * (first + 3 * rest) - 3 * 8 * 8 * 64 * 32 * 25;
        assert_eq!(
            run(plain[0].clone(), recorded[1].clone()),
            behind_frozen,
            "whose input needs no gradient"
        );
        assert_eq!(counted(|| ()).1, 0);
    }
}

//! Measures each layer of the reference networks, forward and backward: time, and operations per second.
//!
//! ```text
//! cargo run --release -p fednode-kernels --example layers -- [batch]
//! ```
#![allow(clippy::print_stdout)]

use std::time::Instant;

use fednode_kernels::Wants;
use fednode_kernels::conv::Block;
use fednode_kernels::linear::{Activation, Layer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let batch = std::env::args()
        .nth(1)
        .map_or(Ok(64), |text| text.parse())?;
    let block = |input, filters, padding| Block {
        input,
        filters,
        kernel: 5,
        padding,
        pool: 2,
    };
    let blocks = [
        ("cnn conv1", block([1, 28, 28], 32, [0, 0])),
        ("cnn conv2", block([32, 12, 12], 64, [0, 0])),
        ("lenet5 conv1", block([1, 28, 28], 6, [2, 2])),
        ("lenet5 conv2", block([6, 14, 14], 16, [0, 0])),
    ];
    for (name, block) in blocks {
        measure_block(name, &block, batch);
    }
    let layers = [
        ("cnn fc1", 1024, 512),
        ("cnn fc", 512, 10),
        ("lenet5 fc1", 400, 120),
        ("lenet5 fc2", 120, 84),
    ];
    for (name, inputs, outputs) in layers {
        measure_layer(
            name,
            &Layer {
                inputs,
                outputs,
                activation: Activation::Relu,
            },
            batch,
        );
    }
    Ok(())
}

fn measure_block(name: &str, block: &Block, batch: usize) {
    let [channels, ..] = block.input;
    let input = vec![0.5; batch * block.input.iter().product::<usize>()];
    let weight = vec![0.1; block.filters * channels * block.kernel * block.kernel];
    let bias = vec![0.1; block.filters];
    let (output, trace) = block.forward(&input, &weight, &bias);
    let operations =
        (2 * output.len() * block.pool * block.pool * channels * block.kernel * block.kernel)
            as f64;
    let forward = best(|| block.forward(&input, &weight, &bias).0.len());
    let all = best(|| {
        block
            .backward(&trace, &weight, &output, Wants::InputGradient)
            .weight
            .len()
    });
    let some = best(|| {
        block
            .backward(&trace, &weight, &output, Wants::ParametersOnly)
            .weight
            .len()
    });
    report(
        name,
        batch,
        [("forward", forward), ("dW", some), ("dX", all - some)],
        operations,
    );
}

fn measure_layer(name: &str, layer: &Layer, batch: usize) {
    let (input, weight) = (
        vec![0.5; batch * layer.inputs],
        vec![0.1; layer.inputs * layer.outputs],
    );
    let output = layer.forward(&input, &weight, None);
    let operations = (2 * batch * layer.inputs * layer.outputs) as f64;
    let forward = best(|| layer.forward(&input, &weight, None).len());
    let all = best(|| {
        layer
            .backward(&input, &output, &weight, &output, Wants::InputGradient)
            .weight
            .len()
    });
    let some = best(|| {
        layer
            .backward(&input, &output, &weight, &output, Wants::ParametersOnly)
            .weight
            .len()
    });
    report(
        name,
        batch,
        [("forward", forward), ("dW", some), ("dX", all - some)],
        operations,
    );
}

/// Returns the shortest of many times, in seconds.
fn best(mut work: impl FnMut() -> usize) -> f64 {
    let mut time = || {
        let start = Instant::now();
        std::hint::black_box(work());
        start.elapsed().as_secs_f64()
    };
    (0..30).map(|_| time()).fold(f64::INFINITY, f64::min)
}

fn report(name: &str, batch: usize, times: [(&str, f64); 3], operations: f64) {
    let columns = times.map(|(what, seconds)| {
        let (micros, rate) = (1e6 * seconds / batch as f64, 1e-9 * operations / seconds);
        format!("{what} {micros:7.2} us/sample {rate:6.1} GFLOP/s")
    });
    println!("{name:13} {}", columns.join("  "));
}

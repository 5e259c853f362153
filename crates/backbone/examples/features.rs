//! Computes the features of images of noise, and says how long it takes.
//!
//! ```text
//! cargo run --release -p fednode-backbone --example features -- FILE [IMAGES [SIDE [THREADS [FOLDER]]]]
//! ```
//!
//! With a folder it writes `pixels.u8` and `features.f32` there, so that another runtime can be held to them.
#![allow(clippy::print_stdout, reason = "it reports")]

use std::error::Error;
use std::time::Instant;

use fednode_backbone::{Backbone, Images, Options, Pixels};

/// Noise that is the same everywhere (xorshift, Marsaglia 2003).
fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.first().ok_or("name an ONNX file")?;
    let number = |at: usize, usual: usize| arguments.get(at).map_or(Ok(usual), |text| text.parse());
    let (n, side, threads) = (number(1, 2000)?, number(2, 128)?, number(3, 1)?);
    let options = Options {
        size: Some([side, side]),
        threads,
        ..Options::default()
    };
    let began = Instant::now();
    let backbone = Backbone::open(file, &options)?;
    println!(
        "{:.2} s to open {} ({} features)",
        began.elapsed().as_secs_f64(),
        backbone.id(),
        backbone.features()
    );
    let pixels = noise(n * 3 * side * side);
    let images = Images::new(Pixels::Bytes(&pixels), [3, side, side])?;
    let began = Instant::now();
    let features = backbone.run(&images)?;
    println!(
        "{:.1} s for {n} images of {side} × {side} on {threads} thread(s)",
        began.elapsed().as_secs_f64()
    );
    if let Some(folder) = arguments.get(4) {
        let folder = std::path::Path::new(folder);
        let bytes: Vec<u8> = features
            .iter()
            .flat_map(|feature| feature.to_le_bytes())
            .collect();
        std::fs::write(folder.join("pixels.u8"), &pixels)?;
        std::fs::write(folder.join("features.f32"), bytes)?;
    }
    Ok(())
}

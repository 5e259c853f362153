//! What is a declaration, how it is written, and what is none.

use super::*;

fn read(text: &str) -> Result<String, String> {
    text.parse::<Layers>()
        .map(|layers| layers.to_string())
        .map_err(|error| error.to_string())
}

#[test]
fn a_declaration_is_written_in_one_way_however_it_was_spaced() {
    let written = "conv 64 7x7 /2 valid, batch-norm, relu, max-pool 3 /2, \
                   2 * residual(conv 64, group-norm 8, leaky-relu, dropout 0.05), \
                   parallel(conv 8 1x1 | max-pool 1, conv 8), mean-pool, linear 10";
    assert_eq!(read(written).unwrap(), written);
    let spaced = "conv 64 /2 valid 7x7,batch-norm ,relu,\n max-pool 3 /2,
        residual ( conv 64 3x3 /1, group-norm 8, leaky-relu, dropout 0.050, ),
        residual(conv 64,group-norm 8,leaky-relu,dropout 0.05),
        parallel(conv 8 1x1|max-pool 1 /1,conv 8), mean-pool, linear 10,";
    assert_eq!(read(spaced).unwrap(), written);
    assert_eq!(read(" ").unwrap(), "", "nothing is declared");
}

#[test]
fn what_is_no_declaration_is_named() {
    for (text, error) in [
        ("convv 3", "unknown layer `convv`: did you mean `conv`?"),
        ("conv 3,, relu", "expected a layer, found `,`"),
        ("conv 3 relu", "`conv 3 relu`: a number of maps"),
        ("conv 0", "`conv 0`: a number of maps"),
        ("conv 8 2x2", "`conv 8 2x2`: a number of maps"),
        ("conv 8 3x5", "`conv 8 3x5`: a number of maps"),
        ("conv 8 33x33", "`conv 8 33x33`: a number of maps"),
        ("max-pool 2 /3", "`max-pool 2 /3`: the side of its window"),
        ("dropout 1.5", "`dropout 1.5`: a share above 0"),
        ("dropout 0.+5", "`dropout 0.+5`: a share above 0"),
        ("conv +8", "`conv +8`: a number of maps"),
        ("dropout 0.0", "`dropout 0.0`: a share above 0"),
        ("relu 3", "`relu 3`: it takes no number"),
        ("residual(conv 3", "expected `,` or `)`, found the end"),
        (
            "residual(conv 3 | conv 3)",
            "expected `,` or `)`, found `|`",
        ),
        ("relu) conv 3", "expected `,` or the end, found `)`"),
        (
            "3 conv 8",
            "expected `*` after a number of layers, found `conv`",
        ),
        ("257 * relu", "a layer can be repeated 1 to 256 times"),
        ("200 * residual(relu)", "a model of more than 256 layers"),
        ("0 * relu", "a layer can be repeated 1 to 256 times"),
    ] {
        let said = read(text).unwrap_err();
        assert!(said.starts_with(error), "{text}: {said}");
    }
    let deep = format!("{}relu{}", "residual(".repeat(9), ")".repeat(9));
    assert!(read(&deep).unwrap_err().contains("at most 4 deep"));
    assert!(read(&"relu,".repeat(1 << 14)).is_err());
}

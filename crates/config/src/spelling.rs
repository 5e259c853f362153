//! Spell-checking: an unknown name is answered with the nearest valid one.

/// How much the likeness of last parts counts, compared with that of whole names.
const LAST_PART: f64 = 0.97;
/// From which likeness on a name is offered.
const LIKE: f64 = 0.8;

/// Says that a name is unknown and which valid ones are nearest. Of dotted names the last part may be all that was typed:
/// `batch_size` is as near to `training.batch_size` as to `pool.batch_size`, so both are offered.
pub fn unknown_name(kind: &str, unknown: &str, valid: &[&str]) -> String {
    match nearest(unknown, valid).as_slice() {
        [] if valid.is_empty() => format!("unknown {kind} `{unknown}`: none is allowed here"),
        [] => format!(
            "unknown {kind} `{unknown}`: expected one of {}",
            quoted(valid).join(", ")
        ),
        best => format!(
            "unknown {kind} `{unknown}`: did you mean {}?",
            quoted(best).join(" or ")
        ),
    }
}

/// Returns the valid names that are nearest to an unknown one; none if all are unlike it.
pub(crate) fn nearest<'a>(unknown: &str, valid: &[&'a str]) -> Vec<&'a str> {
    let last = |name: &str| {
        name.rsplit('.')
            .next()
            .map_or_else(String::new, str::to_owned)
    };
    let likeness = |name: &str| {
        let whole = strsim::jaro_winkler(unknown, name);
        whole.max(strsim::jaro_winkler(&last(unknown), &last(name)) * LAST_PART)
    };
    let near: Vec<(f64, &'a str)> = valid.iter().map(|name| (likeness(name), *name)).collect();
    let best = near.iter().fold(LIKE, |best, (score, _)| best.max(*score));
    let best = near
        .iter()
        .filter(|(score, _)| *score > LIKE && *score == best);
    best.map(|(_, name)| *name).collect()
}

/// Says that a word of a closed set is unknown, which is nearest, and which there are.
pub(crate) fn unknown_value(unknown: &str, valid: &[&str]) -> String {
    let offer = unknown_name("value", unknown, valid);
    if offer.ends_with('?') {
        format!("{offer} Allowed are {}", quoted(valid).join(", "))
    } else {
        offer
    }
}

pub(crate) fn quoted(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("`{name}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_the_nearest_name() {
        let keys = [
            "pool.batch_size",
            "pool.epochs",
            "seed",
            "training.batch_size",
            "training.local_epochs",
        ];
        let offer = |typed| {
            unknown_name("key", typed, &keys)
                .split_once("mean ")
                .unwrap()
                .1
                .to_owned()
        };
        assert_eq!(
            offer("batch_size"),
            "`pool.batch_size` or `training.batch_size`?"
        );
        assert_eq!(offer("local_epochs"), "`training.local_epochs`?");
        assert_eq!(offer("pool.batchsize"), "`pool.batch_size`?");
    }

    #[test]
    fn lists_all_names_where_none_is_near() {
        assert_eq!(
            unknown_name("value", "xml", &["human", "json"]),
            "unknown value `xml`: expected one of `human`, `json`"
        );
        assert_eq!(
            unknown_name("key", "x", &[]),
            "unknown key `x`: none is allowed here"
        );
    }
}

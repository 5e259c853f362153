//! Images turned by quarters of a circle: the same classes seen from other sides.
//!
//! Domain `d` is a turn by `d * 90` degrees, counter-clockwise.

use super::{Change, Domains, Image, Kind, Nature};

pub(super) const KIND: Kind = Kind {
    name: "rotated",
    form: "rotated:TURNS[:HELD]",
    bounds: "TURNS from 2 to 4 and HELD from 1 to TURNS",
    about: "images turned by quarters of a circle; node i holds HELD (1) of so many turns, from turn i mod TURNS on",
    parse,
};

/// Turns that differ.
const MOST_TURNS: u16 = 4;

#[derive(Debug)]
struct Rotated {
    domains: Domains,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    Some(Box::new(Rotated {
        domains: Domains::parse(arguments, MOST_TURNS)?,
    }))
}

impl Change for Rotated {
    fn check(&self, nature: &Nature) -> Result<(), String> {
        nature.need_images("turns")?;
        nature.need_squares()
    }

    fn domains(&self) -> Domains {
        self.domains
    }

    fn change_image(&self, domain: u16, image: &mut Image<'_>) {
        image.turn(domain);
    }
}

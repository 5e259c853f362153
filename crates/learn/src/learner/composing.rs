//! What the served model is made of: the model that rounds trained or a pool, joined with statistics.

use fednode_core::{Component, Composition, Share};

use super::Learner;

impl Learner {
    /// Tells whether statistics have a say in what is served.
    pub(super) fn serves_statistics(&self) -> bool {
        let is_statistics =
            |share: &Share| ![Component::OwnModel, Component::Pool].contains(&share.component);
        let composition = self.composition();
        composition.is_some_and(|composition| composition.shares.iter().any(is_statistics))
    }

    /// Says what the served model is made of; nothing where that is the algorithm's model alone.
    pub fn composition(&self) -> Option<Composition> {
        let own = if self.pool.is_some() {
            Component::Pool
        } else {
            Component::OwnModel
        };
        let own = Composition::of(own);
        let parts = &self.parts;
        let composition = if let Some(regression) = &parts.regression {
            regression.joined_with(own)
        } else if let Some((_, statistics)) = &parts.statistics {
            statistics.joined_with(own)
        } else if let Some(agreement) = &parts.agreement {
            let alone = agreement.joined_with(own);
            match &parts.noised {
                Some(noised) => noised.joined_with(alone),
                None => alone,
            }
        } else {
            own
        };
        composition.says_anything().then_some(composition)
    }
}

//! The signatures of a history: what was signed, by whom, and whether that one was a member then.

use std::collections::BTreeMap;

use fednode_core::{Accepted, AdvertId, FederationId, FederationSpec, NodeId, SignedAdvert};
use fednode_net::MemberBook;

use super::Flaw;

/// What signatures are checked by, and how many were.
pub(super) struct Signatures<'a> {
    pub(super) spec: &'a FederationSpec,
    pub(super) federation: FederationId,
    pub(super) book: Option<&'a MemberBook>,
    pub(super) checked: u64,
}

impl Signatures<'_> {
    /// Checks the signatures of adverts that stand under their authors; `what` says what they are.
    pub(super) fn verify_all(
        &mut self,
        adverts: &[(NodeId, SignedAdvert)],
        what: &str,
    ) -> Result<BTreeMap<AdvertId, Accepted>, Flaw> {
        let mut signed = BTreeMap::new();
        for (author, said) in adverts {
            let what = format!("{what} of {}", author.short());
            let update = self.verify(said).map_err(|flaw| flaw.of(&what))?;
            if update.author != *author {
                return Err(Flaw::False("is of another member".to_owned()).of(&what));
            }
            signed.insert(update.id, update);
        }
        Ok(signed)
    }

    /// Checks the signature of an advert, and that it keeps within the bounds of this federation.
    pub(super) fn verify(&mut self, said: &SignedAdvert) -> Result<Accepted, Flaw> {
        let advert = fednode_net::verify(said)
            .map_err(|error| Flaw::False(format!("is not signed: {error}")))?;
        self.checked += 1;
        // Its life is over since; all else is as when it was heard.
        advert
            .check(self.spec, self.federation, advert.expires_at)
            .map_err(|error| Flaw::False(format!("is refused: {error}")))?;
        Ok(Accepted {
            id: said.id(),
            advert,
        })
    }

    /// Checks that these were members when they signed.
    pub(super) fn were_members<'a>(
        &self,
        signed: impl Iterator<Item = &'a Accepted>,
    ) -> Result<(), Flaw> {
        let Some(book) = self.book else {
            return Ok(());
        };
        let mut revoked = None;
        for advert in signed {
            let (author, at) = (advert.author, advert.issued_at);
            let admitted = book.certificate(&author);
            if admitted.is_none_or(|certificate| at > certificate.not_after) {
                let text = format!("{} signed it, who was no member then", author.short());
                return Err(Flaw::False(text));
            }
            if !book.may_have_said(&author, at) {
                revoked = Some(author);
            }
        }
        // Who counted it may not have heard of the revocation.
        let unproven = |author: NodeId| {
            let text = format!("{} signed it after it was revoked", author.short());
            Err(Flaw::Unproven(text))
        };
        revoked.map_or(Ok(()), unproven)
    }
}

//! The identity of a node: its ed25519 key, on disk and in signatures.
//!
//! The public key *is* the [`NodeId`], so a signature is verified by the message alone. Every kind of signed message begins
//! with a line of its own. So a signature over one kind can never pass for another. The key file has libp2p's protobuf
//! form, which holds both halves of the key. So a damaged file is noticed, and it is an error, never a new identity.

use std::path::Path;

use fednode_core::membership::{SignedStatement, Statement};
use fednode_core::{Advert, MAX_ADVERT_BYTES, NodeId, SignedAdvert};
use libp2p::PeerId;
use libp2p::identity::{Keypair, ed25519};

use crate::codec::{self, CodecError};
use crate::secret_file::{self, SecretFileError};

/// Separates signatures over adverts from all others.
const ADVERT_DOMAIN: &[u8] = b"fednode advert 1\n";
/// Separates signatures over address records from all others.
pub(crate) const RECORD_DOMAIN: &[u8] = b"fednode peer record 1\n";
/// Separates signatures over an organiser's statements from all others.
const STATEMENT_DOMAIN: &[u8] = b"fednode membership 1\n";
/// Separates what audits are drawn from from all signatures that anybody sees.
const AUDIT_DOMAIN: &[u8] = b"fednode audit secret 1\n";
/// Separates what noise is drawn from in the same way.
const NOISE_DOMAIN: &[u8] = b"fednode noise secret 1\n";
/// The name of a key file in errors.
const KEY: &str = "node key";
/// What to do without it. Removing it would end the membership.
const WITHOUT_KEY: &str = "ask the organiser for a ticket by `fednode invite NAME --replace`, and use it with `fednode rotate-key \
                           TICKET`: name, model and history stay; of an aggregator move the file away, and use the ticket with \
                           `fedboot join TICKET`; where there is no organiser move the file away, and the node comes \
                           back as another one";

/// A node's key.
#[derive(Debug, Clone)]
pub struct Identity {
    keypair: ed25519::Keypair,
    node: NodeId,
}

impl Identity {
    /// Makes a new identity, without a file.
    pub fn generate() -> Self {
        Self::of(ed25519::Keypair::generate())
    }

    /// Reads the key file.
    ///
    /// # Errors
    /// Fails if the file is absent, open to others or damaged.
    pub fn load(path: &Path) -> Result<Self, SecretFileError> {
        let bytes = secret_file::read(path)?;
        let keypair = Keypair::from_protobuf_encoding(&bytes)
            .ok()
            .and_then(|keypair| keypair.try_into_ed25519().ok());
        keypair.map(Self::of).ok_or(SecretFileError::Corrupt {
            path: path.to_owned(),
            what: KEY,
            remedy: WITHOUT_KEY,
        })
    }

    /// Makes a new identity and its key file. The file must not exist.
    ///
    /// # Errors
    /// Fails if the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Self, SecretFileError> {
        let identity = Self::generate();
        let bytes = Keypair::from(identity.keypair.clone()).to_protobuf_encoding();
        secret_file::create(path, &bytes.expect("an ed25519 key has a protobuf form"))?;
        Ok(identity)
    }

    /// Reads the key file, or makes it if there is none.
    ///
    /// # Errors
    /// Fails if the file is open to others, damaged, or cannot be written.
    pub fn load_or_create(path: &Path) -> Result<Self, SecretFileError> {
        // A race with another process is harmless: `create` fails if the file appears in between.
        if path.exists() {
            Self::load(path)
        } else {
            Self::create(path)
        }
    }

    /// Returns the node id of this key.
    pub fn node_id(&self) -> NodeId {
        self.node
    }

    /// Encodes and signs an advert.
    pub fn seal(&self, advert: &Advert) -> SignedAdvert {
        let payload = codec::encode(advert);
        SignedAdvert {
            signature: self.sign_advert(&payload),
            payload,
        }
    }

    /// Signs an encoded advert.
    pub fn sign_advert(&self, payload: &[u8]) -> Vec<u8> {
        self.sign(ADVERT_DOMAIN, payload)
    }

    /// Encodes and signs what this key says as an organiser.
    pub fn seal_statement(&self, statement: &Statement) -> SignedStatement {
        let payload = codec::encode(statement);
        SignedStatement {
            signature: self.sign(STATEMENT_DOMAIN, &payload),
            payload,
        }
    }

    /// Returns a number that nobody else can work out: it decides in which rounds this node looks closely.
    pub fn audit_secret(&self) -> u64 {
        // An Ed25519 signature of the same bytes is always the same, and only this key can make it.
        let secret = blake3::hash(&self.sign(AUDIT_DOMAIN, b""));
        let low = secret.as_bytes().first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(low)
    }

    /// Returns a secret that nobody else can work out, of which noise is drawn.
    pub fn noise_secret(&self) -> [u8; 32] {
        *blake3::hash(&self.sign(NOISE_DOMAIN, b"")).as_bytes()
    }

    /// Returns the secret half of the X25519 key to which others seal what is for this node alone. It is the Ed25519 key in
    /// another form (RFC 8032, section 5.1.5), so the public half is the node id in another form: [`sealing_key`].
    pub fn sealing_secret(&self) -> [u8; 32] {
        let secret = self.keypair.secret();
        let seed = secret.as_ref().first_chunk().copied().unwrap_or_default();
        ed25519_dalek::SigningKey::from_bytes(&seed).to_scalar_bytes()
    }

    pub(crate) fn sign(&self, domain: &[u8], payload: &[u8]) -> Vec<u8> {
        self.keypair.sign(&[domain, payload].concat())
    }

    pub(crate) fn keypair(&self) -> Keypair {
        self.keypair.clone().into()
    }

    fn of(keypair: ed25519::Keypair) -> Self {
        let node = NodeId::from_bytes(keypair.public().to_bytes());
        Self { keypair, node }
    }
}

/// Returns the public X25519 key to which others seal what is for this node alone (RFC 7748, section 4.1). `None` if the id is
/// no key, or one with which everybody makes the same secret.
pub fn sealing_key(node: &NodeId) -> Option<[u8; 32]> {
    let key = ed25519_dalek::VerifyingKey::from_bytes(node.as_bytes()).ok()?;
    (!key.is_weak()).then(|| key.to_montgomery().to_bytes())
}

/// Tells why a signed advert does not verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The payload is not an advert.
    #[error("not an advert: {0}")]
    Malformed(#[from] CodecError),
    /// The author did not sign it.
    #[error("the signature of {0} is wrong")]
    Signature(NodeId),
}

/// Largest encoded statement: a name of 32 letters of four bytes, two keys, and numbers.
const MAX_STATEMENT_BYTES: usize = 512;

/// Tells why a statement does not verify.
#[derive(Debug, thiserror::Error)]
pub enum StatementVerifyError {
    /// The payload is no statement.
    #[error("not a statement of an organiser: {0}")]
    Malformed(#[from] CodecError),
    /// The organiser did not sign it.
    #[error(
        "the organiser's signature is wrong: federation.toml and the certificates must be of one federation"
    )]
    Signature,
}

/// Returns whose word a statement claims to be.
pub(crate) fn said_by(signed: &SignedStatement) -> Result<NodeId, StatementVerifyError> {
    let statement: Statement = codec::decode(&signed.payload, MAX_STATEMENT_BYTES)?;
    Ok(statement.organiser)
}

/// Checks that an organiser signed these very bytes, and decodes them.
///
/// # Errors
/// Refuses what the organiser did not sign, and what is no statement.
pub(crate) fn verify_statement(
    signed: &SignedStatement,
    organiser: NodeId,
) -> Result<Statement, StatementVerifyError> {
    // The signature before the content, unlike an advert's: whose word counts is known beforehand.
    let (payload, signature) = (&signed.payload, &signed.signature);
    if !signed_by(&organiser, STATEMENT_DOMAIN, payload, signature) {
        return Err(StatementVerifyError::Signature);
    }
    Ok(codec::decode(&signed.payload, MAX_STATEMENT_BYTES)?)
}

/// Returns the size of an advert on the wire: its encoding and its signature.
pub fn encoded_len(advert: &Advert) -> u64 {
    const SIGNATURE: u64 = 64;
    codec::encode(advert).len() as u64 + SIGNATURE
}

/// Decodes an advert and checks that its author signed these very bytes.
///
/// # Errors
/// Refuses bytes that are no advert, and adverts that their author did not sign.
pub fn verify(signed: &SignedAdvert) -> Result<Advert, VerifyError> {
    // Decoded before the signature is checked, because the author is inside. The codec is made for hostile bytes.
    let advert: Advert = codec::decode(&signed.payload, MAX_ADVERT_BYTES)?;
    if signed_by(
        &advert.author,
        ADVERT_DOMAIN,
        &signed.payload,
        &signed.signature,
    ) {
        Ok(advert)
    } else {
        Err(VerifyError::Signature(advert.author))
    }
}

/// Tells whether `node` signed `payload` in `domain`.
pub(crate) fn signed_by(node: &NodeId, domain: &[u8], payload: &[u8], signature: &[u8]) -> bool {
    ed25519::PublicKey::try_from_bytes(node.as_bytes())
        .is_ok_and(|key| key.verify(&[domain, payload].concat(), signature))
}

/// Returns the libp2p peer id of a node.
pub(crate) fn peer_id(node: &NodeId) -> PeerId {
    PeerId::from_bytes(&node.to_peer_id_bytes())
        .expect("an identity multihash of 36 bytes is a peer id")
}

/// Returns the node of a libp2p peer id, `None` if its key is not ed25519.
pub(crate) fn node_id(peer: &PeerId) -> Option<NodeId> {
    NodeId::from_peer_id_bytes(&peer.to_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use fednode_core::{Body, FederationId, Round, Sequence, Timestamp};

    use super::*;

    #[test]
    fn what_audits_are_drawn_from_stays_with_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let secret = Identity::create(&path).unwrap().audit_secret();
        assert_eq!(
            Identity::load(&path).unwrap().audit_secret(),
            secret,
            "after a restart"
        );
        assert_ne!(Identity::generate().audit_secret(), secret);
    }

    #[test]
    fn what_is_sealed_to_a_node_id_is_for_its_key_alone() {
        let one = x25519_dalek::StaticSecret::from(Identity::generate().sealing_secret());
        let other = Identity::generate();
        let public = x25519_dalek::PublicKey::from(sealing_key(&other.node_id()).unwrap());
        let theirs = x25519_dalek::StaticSecret::from(other.sealing_secret());
        assert_eq!(x25519_dalek::PublicKey::from(&theirs), public);
        let from_one = one.diffie_hellman(&public);
        let from_other = theirs.diffie_hellman(&x25519_dalek::PublicKey::from(&one));
        assert_eq!(from_one.as_bytes(), from_other.as_bytes());
        // The neutral element: with it everybody makes the same secret.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        assert_eq!(sealing_key(&NodeId::from_bytes(neutral)), None);
    }

    fn advert(author: NodeId) -> Advert {
        Advert {
            federation: FederationId::from_bytes([1; 32]),
            author,
            sequence: Sequence {
                incarnation: 1,
                counter: 2,
            },
            round: Round(3),
            issued_at: Timestamp(4),
            expires_at: Timestamp(5),
            body: Body::Leave,
        }
    }

    #[test]
    fn node_id_is_the_peer_id() {
        let identity = Identity::generate();
        let peer = identity.keypair().public().to_peer_id();
        assert_eq!(identity.node_id().to_string(), peer.to_string());
        assert_eq!(node_id(&peer), Some(identity.node_id()));
        assert_eq!(peer_id(&identity.node_id()), peer);
    }

    #[test]
    fn key_file_is_private_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.key");
        let made = Identity::load_or_create(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            Identity::load_or_create(&path).unwrap().node_id(),
            made.node_id()
        );
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no draft is left behind"
        );
        let error = Identity::create(&path).unwrap_err();
        assert!(
            matches!(error, SecretFileError::Create { .. }),
            "an existing key is never overwritten: {error}"
        );
        assert_eq!(Identity::load(&path).unwrap().node_id(), made.node_id());
    }

    #[test]
    fn exposed_or_damaged_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.key");
        Identity::create(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(matches!(
            Identity::load_or_create(&path),
            Err(SecretFileError::Exposed { mode: 0o640, .. })
        ));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            let error = Identity::load_or_create(&path).unwrap_err();
            assert!(
                matches!(error, SecretFileError::Corrupt { .. }),
                "byte {at}: {error}"
            );
            let line = error.to_string();
            assert!(
                line.contains("backup") && line.contains("`fednode rotate-key TICKET`"),
                "{line}"
            );
            bytes[at] ^= 4;
        }
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(
            Identity::load_or_create(&path),
            Err(SecretFileError::Corrupt { .. })
        ));
    }

    #[test]
    fn only_the_author_can_sign_and_only_these_bytes() {
        let (ann, bob) = (Identity::generate(), Identity::generate());
        let payload = codec::encode(&advert(ann.node_id()));
        let good = SignedAdvert {
            signature: ann.sign_advert(&payload),
            payload: payload.clone(),
        };
        assert_eq!(verify(&good).unwrap(), advert(ann.node_id()));
        let forged = SignedAdvert {
            signature: bob.sign_advert(&payload),
            ..good.clone()
        };
        assert!(
            matches!(verify(&forged), Err(VerifyError::Signature(node)) if node == ann.node_id())
        );
        let other_domain = SignedAdvert {
            signature: ann.sign(RECORD_DOMAIN, &payload),
            ..good.clone()
        };
        assert!(matches!(
            verify(&other_domain),
            Err(VerifyError::Signature(_))
        ));
        let mut altered = good;
        let last = altered.payload.len() - 6;
        altered.payload[last] ^= 1;
        assert!(verify(&altered).is_err());
        let short = SignedAdvert {
            signature: Vec::new(),
            payload,
        };
        assert!(matches!(verify(&short), Err(VerifyError::Signature(_))));
    }
}

//! What decides how a block's bytes are read.
//!
//! Two blocks with equal keys are interchangeable only if everything here is equal too. The digest
//! is BLAKE3 over all fields in a fixed order, each with its name, whether it was stated, and its
//! length, so that no two sets of fields can be confused. A field that is not stated enters as
//! "unset": it differs from every value, the empty one included.

use std::fmt;

use bon::Builder;

const DOMAIN: &[u8] = b"dynamo_llm fingerprint v1";

/// The fields of a [`Fingerprint`].
///
/// Plain text, compared byte by byte: `"bf16"` and `"BF16"` are two fingerprints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Builder)]
#[builder(on(String, into))]
#[non_exhaustive]
pub struct FingerprintFields {
    /// Name of the model.
    pub model: Option<String>,
    /// Revision of the model's repository.
    pub revision: Option<String>,
    /// Version or digest of the weights, for weights that change in place.
    pub weights: Option<String>,
    /// Element type that the cache really has, after "auto" was resolved.
    pub dtype: Option<String>,
    /// Quantisation of the cache and its scales.
    pub quantisation: Option<String>,
    /// Tokens of a block.
    pub page_size: Option<u64>,
    /// Order and sizes of the stored dimensions; not those of the device.
    pub layout: Option<String>,
    /// The part of the model that a rank holds, or the id of the canonical page format.
    pub parallel: Option<String>,
    /// How the attention back end packs a page.
    pub attention: Option<String>,
    /// Scheme of the sequence hashes, with its root where it has one.
    pub hash_scheme: Option<String>,
}

impl FingerprintFields {
    /// The digest of all fields.
    pub fn fingerprint(&self) -> Fingerprint {
        let page_size = self.page_size.map(|tokens| tokens.to_string());
        // Every field by name: one that is added and forgotten here does not compile.
        let Self {
            model,
            revision,
            weights,
            dtype,
            quantisation,
            page_size: _,
            layout,
            parallel,
            attention,
            hash_scheme,
        } = self;
        let parts: [(&str, &Option<String>); 10] = [
            ("model", model),
            ("revision", revision),
            ("weights", weights),
            ("dtype", dtype),
            ("quantisation", quantisation),
            ("page_size", &page_size),
            ("layout", layout),
            ("parallel", parallel),
            ("attention", attention),
            ("hash_scheme", hash_scheme),
        ];
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN);
        for (name, value) in parts {
            text(&mut hasher, name);
            hasher.update(&[u8::from(value.is_some())]);
            text(&mut hasher, value.as_deref().unwrap_or_default());
        }
        Fingerprint(*hasher.finalize().as_bytes())
    }
}

fn text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// Digest of all that decides how bytes are read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint that these bytes are, as kept in a record.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep in a record.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

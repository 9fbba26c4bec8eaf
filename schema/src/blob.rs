//! Bytes in JSON.

use data_encoding::BASE64;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, which are a text in base64 where they are JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'d> Deserialize<'d> for Blob {
    fn deserialize<D: Deserializer<'d>>(deserializer: D) -> Result<Blob, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64.decode(text.as_bytes()).map(Blob).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_base64_in_json() {
        assert_eq!(serde_json::to_string(&Blob(vec![0, 1])).unwrap(), "\"AAE=\"");
        assert_eq!(serde_json::from_str::<Blob>("\"AAE=\"").unwrap(), Blob(vec![0, 1]));
        assert!(serde_json::from_str::<Blob>("\"!\"").is_err());
    }
}

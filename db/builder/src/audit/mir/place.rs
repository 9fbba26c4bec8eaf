//! Places by their structure: a local and the projections from it.

use super::UnknownMir;
use super::text::MirCursor;

/// Most projections from a local to a place. Reaching the limit is a refusal.
const MAX_PROJECTIONS: usize = 256;

/// One projection of a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum PlaceProjection {
    /// The target of a reference or box.
    Deref,
    /// A field, by its number.
    Field(u32),
    /// One variant of an enum.
    Downcast(String),
    /// An element, by a local that holds its number.
    Index(u32),
    /// An element that a pattern names: `[0 of 2]`, `[-1 of 2]`. The length is left out, because the element is the
    /// same.
    ConstantIndex(String),
    /// A part of a slice that a pattern names: `[1:-1]`, `[1..3]`.
    Subslice(String),
}

impl PlaceProjection {
    /// Returns whether this is an element or a part of an array or slice.
    pub(in super::super) fn is_array_projection(&self) -> bool {
        matches!(self, PlaceProjection::Index(_) | PlaceProjection::ConstantIndex(_) | PlaceProjection::Subslice(_))
    }

    /// Returns whether a pattern names this part of an array or slice.
    pub(in super::super) fn is_pattern_projection(&self) -> bool {
        matches!(self, PlaceProjection::ConstantIndex(_) | PlaceProjection::Subslice(_))
    }

    /// Returns whether both projections of the same place may lead to overlapping memory.
    fn meets(&self, other: &PlaceProjection) -> bool {
        match (self, other) {
            (PlaceProjection::Field(one), PlaceProjection::Field(other)) => one == other,
            // All other projections are either the same, or not known to lead elsewhere.
            _ => true,
        }
    }
}

/// A place: its local, and the projections from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct MirPlace {
    pub(in super::super) local: u32,
    pub(in super::super) way: Vec<PlaceProjection>,
}

impl MirPlace {
    pub(in super::super) fn of_local(local: u32) -> MirPlace {
        MirPlace { local, way: Vec::new() }
    }

    /// The place after so many projections.
    pub(in super::super) fn part(&self, steps: usize) -> MirPlace {
        MirPlace { local: self.local, way: self.way.iter().take(steps).cloned().collect() }
    }

    /// The target of this place, which is a pointer.
    pub(in super::super) fn dereferenced(&self) -> MirPlace {
        let mut place = self.clone();
        place.way.push(PlaceProjection::Deref);
        place
    }

    /// Returns whether the other place may be this one, or a prefix of it.
    pub(in super::super) fn may_start_with(&self, start: &MirPlace) -> bool {
        self.way.len() >= start.way.len() && self.may_alias(start)
    }

    /// Returns whether one of two places may be a prefix of the other. Elements of one array count as the same.
    pub(in super::super) fn may_alias(&self, other: &MirPlace) -> bool {
        self.local == other.local && self.way.iter().zip(&other.way).all(|(one, other)| one.meets(other))
    }

    /// Returns whether a projection after so many is a dereference.
    pub(in super::super) fn derefs_after(&self, steps: usize) -> bool {
        self.way.iter().skip(steps).any(|step| *step == PlaceProjection::Deref)
    }
}

/// An opening bracket of a place, closed after it.
enum OpenBracket {
    /// `(*` … `)`
    Pointer,
    /// `(` … ` as Variant)` or `.0: Type)`
    Parenthesis,
}

/// Parses the place at the cursor.
pub(super) fn place(text: &mut MirCursor<'_>) -> Result<MirPlace, UnknownMir> {
    let mut open: Vec<OpenBracket> = Vec::new();
    loop {
        if text.eat("(*") {
            open.push(OpenBracket::Pointer);
        } else if text.eat("(") {
            open.push(OpenBracket::Parenthesis);
        } else {
            break;
        }
        if open.len() > MAX_PROJECTIONS {
            return Err(text.unknown());
        }
    }
    text.expect("_")?;
    let mut place = MirPlace::of_local(text.number()?);
    loop {
        while text.starts("[") {
            place.way.push(in_brackets(text)?);
        }
        if place.way.len() > MAX_PROJECTIONS {
            return Err(text.unknown());
        }
        match open.pop() {
            None => return Ok(place),
            Some(OpenBracket::Pointer) => {
                text.expect(")")?;
                place.way.push(PlaceProjection::Deref);
            }
            Some(OpenBracket::Parenthesis) if text.eat(".") => {
                place.way.push(PlaceProjection::Field(text.number()?));
                text.expect(": ")?;
                text.until(b")")?;
                text.expect(")")?;
            }
            Some(OpenBracket::Parenthesis) => {
                text.expect(" as ")?;
                let variant = text.until(b")")?;
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                if variant.is_empty() || !variant.bytes().all(is_name) {
                    return Err(UnknownMir::of(variant));
                }
                text.expect(")")?;
                place.way.push(PlaceProjection::Downcast(variant.to_owned()));
            }
        }
    }
}

fn in_brackets(text: &mut MirCursor<'_>) -> Result<PlaceProjection, UnknownMir> {
    text.expect("[")?;
    let inside = text.until(b"]")?;
    text.expect("]")?;
    if let Some(local) = inside.strip_prefix('_') {
        let mut local = MirCursor::new(local);
        let number = local.number()?;
        return if local.rest().is_empty() { Ok(PlaceProjection::Index(number)) } else { Err(UnknownMir::of(inside)) };
    }
    let is_number = |text: &str| text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    if let Some((at, of)) = inside.split_once(" of ")
        && !at.is_empty()
        && !of.is_empty()
        && is_number(at)
        && is_number(of)
    {
        return Ok(PlaceProjection::ConstantIndex(at.to_owned()));
    }
    match inside.split_once("..").or_else(|| inside.split_once(':')) {
        Some((from, to)) if is_number(from) && is_number(to) => Ok(PlaceProjection::Subslice(inside.to_owned())),
        _ => Err(UnknownMir::of(inside)),
    }
}

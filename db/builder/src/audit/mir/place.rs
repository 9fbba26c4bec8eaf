//! Places, by their structure: a local and the way from it.

use super::Unknown;
use super::text::Text;

/// Steps from a local to a place. Reaching it is a refusal.
const STEPS: usize = 256;

/// A step on the way to a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Step {
    /// What a reference or box points at.
    Deref,
    /// A field, by its number.
    Field(u32),
    /// One variant of an enum.
    Variant(String),
    /// An element, by a local that holds its number.
    Index(u32),
    /// An element that a pattern names: `[0 of 2]`, `[-1 of 2]`; of how many is left out, the element is the same.
    Element(String),
    /// A part of a slice that a pattern names: `[1:-1]`, `[1..3]`.
    Part(String),
}

impl Step {
    /// An element or a part of an array or slice.
    pub(in super::super) fn is_of_array(&self) -> bool {
        matches!(self, Step::Index(_) | Step::Element(_) | Step::Part(_))
    }

    /// What a pattern names of an array or slice.
    pub(in super::super) fn is_piece(&self) -> bool {
        matches!(self, Step::Element(_) | Step::Part(_))
    }

    /// Whether both steps, from the same place, may lead to memory that they share.
    fn meets(&self, other: &Step) -> bool {
        match (self, other) {
            (Step::Field(one), Step::Field(other)) => one == other,
            // Everything else either is the same step, or is not known to lead elsewhere.
            _ => true,
        }
    }
}

/// A place: where it starts, and the way from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Place {
    pub(in super::super) local: u32,
    pub(in super::super) way: Vec<Step>,
}

impl Place {
    pub(in super::super) fn of_local(local: u32) -> Place {
        Place { local, way: Vec::new() }
    }

    /// The place after so many steps of the way.
    pub(in super::super) fn part(&self, steps: usize) -> Place {
        Place { local: self.local, way: self.way.iter().take(steps).cloned().collect() }
    }

    /// What this, which is a pointer, points at.
    pub(in super::super) fn pointed_at(&self) -> Place {
        let mut place = self.clone();
        place.way.push(Step::Deref);
        place
    }

    /// Whether the way to this place may be, or may start with, the way to the other.
    pub(in super::super) fn may_start_with(&self, start: &Place) -> bool {
        self.way.len() >= start.way.len() && self.may_meet(start)
    }

    /// Whether one of two places may lie on the way to the other. Elements of one array count as the same.
    pub(in super::super) fn may_meet(&self, other: &Place) -> bool {
        self.local == other.local && self.way.iter().zip(&other.way).all(|(one, other)| one.meets(other))
    }

    /// Whether the way behind so many steps leads through a pointer.
    pub(in super::super) fn derefs_behind(&self, steps: usize) -> bool {
        self.way.iter().skip(steps).any(|step| *step == Step::Deref)
    }
}

/// What opens before a place is read, and is closed behind it.
enum Open {
    /// `(*` … `)`
    Pointer,
    /// `(` … ` as Variant)` or `.0: Type)`
    Parenthesis,
}

/// Reads the place that stands here.
pub(super) fn place(text: &mut Text<'_>) -> Result<Place, Unknown> {
    let mut open: Vec<Open> = Vec::new();
    loop {
        if text.eat("(*") {
            open.push(Open::Pointer);
        } else if text.eat("(") {
            open.push(Open::Parenthesis);
        } else {
            break;
        }
        if open.len() > STEPS {
            return Err(text.unknown());
        }
    }
    text.expect("_")?;
    let mut place = Place::of_local(text.number()?);
    loop {
        while text.starts("[") {
            place.way.push(in_brackets(text)?);
        }
        if place.way.len() > STEPS {
            return Err(text.unknown());
        }
        match open.pop() {
            None => return Ok(place),
            Some(Open::Pointer) => {
                text.expect(")")?;
                place.way.push(Step::Deref);
            }
            Some(Open::Parenthesis) if text.eat(".") => {
                place.way.push(Step::Field(text.number()?));
                text.expect(": ")?;
                text.until(b")")?;
                text.expect(")")?;
            }
            Some(Open::Parenthesis) => {
                text.expect(" as ")?;
                let variant = text.until(b")")?;
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                if variant.is_empty() || !variant.bytes().all(is_name) {
                    return Err(Unknown::of(variant));
                }
                text.expect(")")?;
                place.way.push(Step::Variant(variant.to_owned()));
            }
        }
    }
}

fn in_brackets(text: &mut Text<'_>) -> Result<Step, Unknown> {
    text.expect("[")?;
    let inside = text.until(b"]")?;
    text.expect("]")?;
    if let Some(local) = inside.strip_prefix('_') {
        let mut local = Text::new(local);
        let number = local.number()?;
        return if local.rest().is_empty() { Ok(Step::Index(number)) } else { Err(Unknown::of(inside)) };
    }
    let is_number = |text: &str| text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    if let Some((at, of)) = inside.split_once(" of ")
        && !at.is_empty()
        && !of.is_empty()
        && is_number(at)
        && is_number(of)
    {
        return Ok(Step::Element(at.to_owned()));
    }
    match inside.split_once("..").or_else(|| inside.split_once(':')) {
        Some((from, to)) if is_number(from) && is_number(to) => Ok(Step::Part(inside.to_owned())),
        _ => Err(Unknown::of(inside)),
    }
}

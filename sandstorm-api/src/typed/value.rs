//! Types of the tenant's own as bytes: in records, and in calls of typed functions.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Decoder;
use super::type_text::TypeText;
use crate::Error;
use crate::error::shown_key;

/// A value that records and calls of typed functions hold: numbers, `bool`, `String`, `Option` and `Vec` of such, and
/// the structs and enums that [`typed!`](crate::typed!) names.
///
/// The bytes are those of [typed calls](https://github.com/sandstorm/sandstorm/blob/main/docs/types.md#what-is-typed).
/// They stay the same in every version of this crate.
///
/// ```
/// use sandstorm_api::prelude::*;
/// use sandstorm_api::testing::TestStore;
///
/// #[derive(Debug, PartialEq)]
/// pub struct Account {
///     pub owner: String,
///     pub balance: u64,
///     pub limit: Option<u64>,
/// }
///
/// typed!(struct Account { owner, balance, limit });
///
/// /// Adds one to the account whose key is `args`.
/// async fn earn(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     let (table, tx) = (db.table("accounts")?, db.transaction());
///     let record = tx.get(table, args).await?.ok_or(Error::not_found("no such account"))?;
///     let mut account: Account = record.typed()?;
///     account.balance += 1;
///     tx.put(table, args, &account.to_record())
/// }
///
/// let mut store = TestStore::new();
/// let accounts = store.table("accounts");
/// let account = Account { owner: "ann".into(), balance: 3, limit: None };
/// store.put(accounts, b"17", &account.to_record());
/// store.invoke(earn, b"17").unwrap();
/// let earned = Account::from_record(store.get(accounts, b"17").unwrap());
/// assert_eq!(earned, Ok(Account { balance: 4, ..account }));
/// ```
pub trait Typed: Sized {
    /// Reads a value from the bytes of a record.
    ///
    /// Fields at the end of a struct that the bytes do not have any more are `None`, if they are of an `Option`: so a
    /// struct can get new fields there, and read what was written before.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// assert_eq!(u16::from_record(&[1, 2]), Ok(513));
    /// let error = u16::from_record(&[1]).unwrap_err();
    /// assert_eq!(error.text(), "the bytes are no u16: they end too early (at byte 0 of 1)");
    /// ```
    ///
    /// # Errors
    /// `Invalid`: the bytes are none of this type.
    fn from_record(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = Decoder::of_record(bytes);
        let read = Self::typed_read(&mut from).and_then(|value| from.finish().map(|()| value));
        read.map_err(|error| Error::invalid(format!("the bytes are no {}: {}", type_name::<Self>(), error.text())))
    }

    /// The bytes of the value, for a record.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// assert_eq!("tea".to_string().to_record(), [3, 0, 0, 0, b't', b'e', b'a']);
    /// assert_eq!(vec![Some(7u8), None].to_record(), [2, 0, 0, 0, 1, 7, 0]);
    /// ```
    fn to_record(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.typed_write(&mut bytes);
        bytes
    }

    /// Reads the value.
    #[doc(hidden)]
    fn typed_read(from: &mut Decoder<'_>) -> Result<Self, Error>;

    /// Writes the value.
    #[doc(hidden)]
    fn typed_write(&self, to: &mut Vec<u8>);

    /// Any value, for [`Typed::typed_describe`]; it takes no memory.
    #[doc(hidden)]
    fn typed_empty() -> Self;

    /// Writes the type's name.
    #[doc(hidden)]
    fn typed_name(to: &mut TypeText);

    /// Writes down the structs and enums in the type.
    #[doc(hidden)]
    fn typed_describe(_to: &mut TypeText) {}

    /// What stands for a field that is not there.
    #[doc(hidden)]
    fn typed_missing() -> Option<Self> {
        None
    }

    /// As [`Typed::typed_name`], of a list of such values.
    #[doc(hidden)]
    fn typed_list_name(to: &mut TypeText) {
        to.push("Vec<");
        Self::typed_name(to);
        to.push(">");
    }

    /// Reads a list of such values.
    #[doc(hidden)]
    fn typed_read_list(from: &mut Decoder<'_>) -> Result<Vec<Self>, Error> {
        from.list(Self::typed_read)
    }

    /// Writes values one after the other.
    #[doc(hidden)]
    fn typed_write_list(values: &[Self], to: &mut Vec<u8>) {
        for value in values {
            value.typed_write(to);
        }
    }
}

/// The name of a type, as schemas have it.
fn type_name<T: Typed>() -> String {
    let mut text = TypeText::default();
    T::typed_name(&mut text);
    text.into_text()
}

macro_rules! numbers {
    ($($type:ident)*) => {
        $(
            impl Typed for $type {
                fn typed_read(from: &mut Decoder<'_>) -> Result<$type, Error> {
                    from.$type()
                }

                fn typed_write(&self, to: &mut Vec<u8>) {
                    to.extend_from_slice(&self.to_le_bytes());
                }

                fn typed_empty() -> $type {
                    <$type>::default()
                }

                fn typed_name(to: &mut TypeText) {
                    to.push(stringify!($type));
                }
            }
        )*
    };
}
numbers!(u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl Typed for u8 {
    fn typed_read(from: &mut Decoder<'_>) -> Result<u8, Error> {
        from.u8()
    }

    fn typed_write(&self, to: &mut Vec<u8>) {
        to.push(*self);
    }

    fn typed_empty() -> u8 {
        0
    }

    fn typed_name(to: &mut TypeText) {
        to.push("u8");
    }

    fn typed_list_name(to: &mut TypeText) {
        to.push("bytes");
    }

    fn typed_read_list(from: &mut Decoder<'_>) -> Result<Vec<u8>, Error> {
        from.bytes()
    }

    fn typed_write_list(values: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(values);
    }
}

impl Typed for bool {
    fn typed_read(from: &mut Decoder<'_>) -> Result<bool, Error> {
        from.bool()
    }

    fn typed_write(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn typed_empty() -> bool {
        false
    }

    fn typed_name(to: &mut TypeText) {
        to.push("bool");
    }
}

/// Nothing: the argument of a function that takes none, or its reply.
impl Typed for () {
    fn typed_read(_from: &mut Decoder<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn typed_write(&self, _to: &mut Vec<u8>) {}

    fn typed_empty() {}

    fn typed_name(to: &mut TypeText) {
        to.push("()");
    }
}

fn write_len(len: usize, to: &mut Vec<u8>) {
    // What has 4 GiB fits neither into a record nor into a call.
    to.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

impl Typed for String {
    fn typed_read(from: &mut Decoder<'_>) -> Result<String, Error> {
        from.string()
    }

    fn typed_write(&self, to: &mut Vec<u8>) {
        write_len(self.len(), to);
        to.extend_from_slice(self.as_bytes());
    }

    fn typed_empty() -> String {
        String::new()
    }

    fn typed_name(to: &mut TypeText) {
        to.push("String");
    }
}

impl<T: Typed> Typed for Vec<T> {
    fn typed_read(from: &mut Decoder<'_>) -> Result<Vec<T>, Error> {
        T::typed_read_list(from)
    }

    fn typed_write(&self, to: &mut Vec<u8>) {
        write_len(self.len(), to);
        T::typed_write_list(self, to);
    }

    fn typed_empty() -> Vec<T> {
        Vec::new()
    }

    fn typed_name(to: &mut TypeText) {
        T::typed_list_name(to);
    }

    fn typed_describe(to: &mut TypeText) {
        T::typed_describe(to);
    }
}

impl<T: Typed> Typed for Option<T> {
    fn typed_read(from: &mut Decoder<'_>) -> Result<Option<T>, Error> {
        from.option(T::typed_read)
    }

    fn typed_write(&self, to: &mut Vec<u8>) {
        to.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.typed_write(to);
        }
    }

    fn typed_empty() -> Option<T> {
        None
    }

    fn typed_name(to: &mut TypeText) {
        to.push("Option<");
        T::typed_name(to);
        to.push(">");
    }

    fn typed_describe(to: &mut TypeText) {
        T::typed_describe(to);
    }

    fn typed_missing() -> Option<Option<T>> {
        Some(None)
    }
}

/// The error of a record whose value is of another type.
#[cold]
pub(crate) fn wrong_record(key: &[u8], error: &Error) -> Error {
    Error::invalid(format!("the record {}: {}", shown_key(key), error.text()))
}

/// Makes a struct or an enum of yours a [`Typed`] one, whose values records and calls of typed functions hold. It names
/// the fields, or the variants with what is in them; the compiler says which is missing.
///
/// The order of the fields is that of their bytes, and variants have their numbers from 0: new fields belong to the
/// end, as an `Option`, and new variants as well.
///
/// ```
/// use sandstorm_api::prelude::*;
///
/// #[derive(Debug)]
/// pub struct Line {
///     pub article: String,
///     pub count: u32,
/// }
///
/// #[derive(Debug)]
/// pub enum Order {
///     Empty,
///     One(Line),
///     Split(String, u8),
///     Many { lines: Vec<Line>, note: Option<String> },
/// }
///
/// typed!(struct Line { article, count });
/// typed!(enum Order { Empty, One(line), Split(name, parts), Many { lines, note } });
///
/// let bytes = Order::Split("tea".into(), 2).to_record();
/// assert_eq!(bytes, [2, 3, 0, 0, 0, b't', b'e', b'a', 2]);
/// assert!(matches!(Order::from_record(&bytes), Ok(Order::Split(_, 2))));
/// assert!(Order::from_record(&[9]).unwrap_err().text().starts_with("the bytes are no Order: "));
/// ```
#[macro_export]
macro_rules! typed {
    (@place) => {
        ::core::concat!(::core::module_path!(), ":", ::core::line!(), ":", ::core::column!())
    };
    (@kind) => { "" };
    (@kind ($($part:tt)*)) => { "(" };
    (@kind {$($part:tt)*}) => { "{" };
    (struct $name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::Typed for $name {
            fn typed_read(from: &mut $crate::typed::Decoder<'_>) -> ::core::result::Result<Self, $crate::Error> {
                let place = from.enter()?;
                let value = $name { $($field: from.field(place)?),+ };
                from.leave();
                ::core::result::Result::Ok(value)
            }

            fn typed_write(&self, to: &mut $crate::typed::Bytes) {
                let $name { $($field),+ } = self;
                $( $crate::Typed::typed_write($field, to); )+
            }

            fn typed_empty() -> Self {
                $name { $($field: $crate::Typed::typed_empty()),+ }
            }

            fn typed_name(to: &mut $crate::typed::TypeText) {
                to.push_name(::core::stringify!($name));
            }

            fn typed_describe(to: &mut $crate::typed::TypeText) {
                let place = $crate::typed!(@place);
                let mut passes = $crate::typed::TypePasses::of("struct", ::core::stringify!($name), place);
                while passes.next(to) {
                    let _ = $name { $($field: to.field(::core::stringify!($field))),+ };
                }
            }
        }
    };
    (enum $name:ident { $(
        $variant:ident $( ( $($part:ident),+ $(,)? ) )? $( { $($field:ident),+ $(,)? } )?
    ),+ $(,)? }) => {
        impl $crate::Typed for $name {
            fn typed_read(from: &mut $crate::typed::Decoder<'_>) -> ::core::result::Result<Self, $crate::Error> {
                #[allow(non_camel_case_types)]
                #[repr(u8)]
                enum SandstormVariantNumber { $($variant),+ }
                from.enter()?;
                let number = from.u8()?;
                let value = $(
                    if number == SandstormVariantNumber::$variant as u8 {
                        $name::$variant
                            $( ( $( from.part(::core::stringify!($part))? ),+ ) )?
                            $( { $( $field: from.part(::core::stringify!($field))? ),+ } )?
                    } else
                )+ {
                    return ::core::result::Result::Err(from.wrong("have an enum without a variant of that number"));
                };
                from.leave();
                ::core::result::Result::Ok(value)
            }

            fn typed_write(&self, to: &mut $crate::typed::Bytes) {
                #[allow(non_camel_case_types)]
                #[repr(u8)]
                enum SandstormVariantNumber { $($variant),+ }
                match self {
                    $(
                        $name::$variant $( ( $($part),+ ) )? $( { $($field),+ } )? => {
                            to.push(SandstormVariantNumber::$variant as u8);
                            $( $( $crate::Typed::typed_write($part, to); )+ )?
                            $( $( $crate::Typed::typed_write($field, to); )+ )?
                        }
                    )+
                }
            }

            #[allow(unreachable_code)]
            fn typed_empty() -> Self {
                $(
                    return $name::$variant
                        $( ( $( $crate::typed::empty(::core::stringify!($part)) ),+ ) )?
                        $( { $( $field: $crate::typed::empty(::core::stringify!($field)) ),+ } )?;
                )+
            }

            fn typed_name(to: &mut $crate::typed::TypeText) {
                to.push_name(::core::stringify!($name));
            }

            fn typed_describe(to: &mut $crate::typed::TypeText) {
                let place = $crate::typed!(@place);
                let mut passes = $crate::typed::TypePasses::of("enum", ::core::stringify!($name), place);
                while passes.next(to) {
                    $(
                        let kind = $crate::typed!(@kind $( ( $($part)+ ) )? $( { $($field)+ } )?);
                        to.begin_variant(::core::stringify!($variant), kind);
                        let _ = $name::$variant
                            $( ( $( to.value(::core::stringify!($part)) ),+ ) )?
                            $( { $( $field: to.field(::core::stringify!($field)) ),+ } )?;
                        to.end_variant(kind);
                    )+
                }
            }
        }
    };
}

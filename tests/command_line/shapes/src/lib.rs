//! Typed functions of every shape, which give what they are given, and some that end in other ways: for the clients
//! that `ext generate` writes.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

/// Numbers of all widths.
#[derive(Clone)]
pub struct Numbers {
    pub a: u8,
    pub b: u16,
    pub c: u32,
    pub d: u64,
    pub e: i8,
    pub f: i16,
    pub g: i32,
    pub h: i64,
    pub i: f32,
    pub j: f64,
    pub yes: bool,
}

#[derive(Clone)]
pub enum Colour {
    Red,
    DarkGreen,
}

/// Values within values. */ And what would end a comment.
#[derive(Clone)]
pub struct Nested {
    /// One of two.
    pub colour: Option<Colour>,
    pub texts: Vec<Option<String>>,
    pub grid: Vec<Vec<u32>>,
    pub blob: Vec<u8>,
    pub parts: Vec<Vec<u8>>,
    pub maybe: Option<Vec<u8>>,
    pub numbers: Option<Numbers>,
    pub shapes: Vec<Shape>,
}

/// A variant of each kind.
#[derive(Clone)]
pub enum Shape {
    Empty,
    Circle(f64),
    /// Two values.
    Segment(i64, u64),
    Labelled { name: String, tags: Vec<String> },
    Blob(Vec<u8>),
    Inner(Colour),
    Maybe(Option<u64>),
}

/// Names that the clients have for something else.
#[derive(Clone)]
pub struct Transport {
    pub options: Vec<Promise>,
}

#[derive(Clone)]
pub struct Promise {
    pub error: u64,
}

pub async fn numbers(_db: Db<'_>, args: Numbers) -> Result<Numbers, Error> {
    Ok(args)
}

pub async fn nested(_db: Db<'_>, args: Nested) -> Result<Nested, Error> {
    Ok(args)
}

pub async fn shape(_db: Db<'_>, args: Shape) -> Result<Shape, Error> {
    Ok(args)
}

pub async fn transport(_db: Db<'_>, args: Transport) -> Result<Transport, Error> {
    Ok(args)
}

pub async fn blob(_db: Db<'_>, args: Vec<u8>) -> Result<Vec<u8>, Error> {
    Ok(args)
}

pub async fn integer(_db: Db<'_>, args: u64) -> Result<u64, Error> {
    Ok(args)
}

pub async fn maybe(_db: Db<'_>, args: Option<i64>) -> Result<Option<i64>, Error> {
    Ok(args)
}

/// It takes nothing.
pub async fn largest(_db: Db<'_>) -> Result<u64, Error> {
    Ok(u64::MAX)
}

pub async fn nothing(_db: Db<'_>) -> Result<(), Error> {
    Ok(())
}

pub async fn infinite(_db: Db<'_>) -> Result<f64, Error> {
    Ok(f64::INFINITY)
}

/// A text of so many letters.
pub async fn long(_db: Db<'_>, args: u32) -> Result<String, Error> {
    Ok((0..args).map(|_| 'x').collect())
}

/// Calls itself until the stack is full.
fn deeper(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 16]);
    // Never true, but the compiler cannot know.
    if core::hint::black_box(depth) == 0 {
        return 0;
    }
    core::hint::black_box(deeper(depth + 1)).wrapping_add(here[0])
}

/// Ends in the way that it is told.
pub async fn end(db: Db<'_>, args: String) -> Result<(), Error> {
    match args.as_str() {
        "panic" => panic!("as asked"),
        "loop" => loop {
            core::hint::black_box(1);
        },
        "not_found" => Err(Error::not_found("no such order")),
        "invalid" => Err(Error::invalid("not (so)")),
        "unknown_table" => db.table("nothing").map(|_| ()),
        "conflict" => {
            let table = db.table("default")?;
            db.put(table, b"there", b"1").await?;
            db.put(table, b"there", b"2").if_absent().await.map(|_| ())
        }
        "out_of_memory" => {
            let (table, value) = (db.table("small")?, vec![0; 64 << 10]);
            for number in 0..64_u32 {
                db.put(table, &number.to_le_bytes(), &value).await?;
            }
            Ok(())
        }
        "too_large" => db.put(db.table("default")?, &vec![0; 128 << 10], b"").await.map(|_| ()),
        "not_a_number" => {
            let table = db.table("default")?;
            db.put(table, b"word", b"word").await?;
            db.increment(table, b"word", 1).await.map(|_| ())
        }
        "read_only" => db.put(db.table("owner/prices")?, b"tea", b"3").await.map(|_| ()),
        "meets itself" => {
            // What it writes beside its transaction changes what that has read, at each try.
            let (table, both) = (db.table("default")?, db.transaction());
            both.get(table, b"met").await?;
            db.put(table, b"met", b"1").await?;
            both.put(table, b"met", b"2")
        }
        "waits" => loop {
            yield_now().await;
        },
        "not_read" => db.get(db.table("behind")?, b"damaged").await.map(|_| ()),
        "not_backed" => db.put(db.table("bounded")?, b"k", &[7; 4096]).await.map(|_| ()),
        "not_durable" => {
            // The table in front knows the record, and another writer changes it behind.
            let (front, behind) = (db.table("front")?, db.table("default")?);
            db.get(front, b"written").await?;
            db.put(behind, b"written", b"theirs").await?;
            db.put(front, b"written", b"ours").await.map(|_| ())
        }
        "stack" => {
            core::hint::black_box(deeper(1));
            Ok(())
        }
        "memory" => {
            core::hint::black_box(Vec::<u8>::with_capacity(1 << 30));
            Ok(())
        }
        // Of a key that nobody has asked for, of a table whose backing does not answer.
        word if word.starts_with("hangs ") => db.get(db.table("hangs")?, word.as_bytes()).await.map(|_| ()),
        _ => Err(Error::new("for its own reason")),
    }
}

//! Tests of the parsers of the intermediate form: a place has one name, and unknown text is refused.

use super::coverage;
use super::mir::{MirBody, PlaceAccess, PlaceProjection};
use super::{SourceFacts, bodies, gives_what_it_takes, guards, has_impl_trait, indexing, stale};

/// A body with these statements in its first block.
fn body(statements: &str) -> String {
    format!(
        "// MIR for `f` 0 renumber\n\n| User Type Annotations\n|\nfn f(_1: &mut Kept, _2: usize) -> u64 {{\n    debug x => _1; // in scope 0 at src/lib.rs:1:2: 1:3\n    \
         let mut _0: u64; // return place in scope 0 at src/lib.rs:1:2: 1:3\n    let _3: isize;\n    let mut _4: [u8; 3];\n    scope 1 {{\n        debug y => _3;\n    \
         }}\n\n    bb0: {{\n{statements}\n        return; // scope 0 at src/lib.rs:9:8: 9:9\n    }}\n}}\n"
    )
}

#[test]
fn a_place_is_read_to_its_end_whatever_its_types_are_called() {
    let place = "(*(((*(_1.0: std::boxed::Box<A<')', \"}\", -1>>)) as Some).1: fn(&'a u8) -> [u8; 2]))[_2]";
    let text = body(&format!("        _3 = discriminant({place}); // scope 0 at src/lib.rs:3:4: 5:6"));
    let read = MirBody::read(&text).expect("a body");
    let (access, found) = &read.blocks[0].statements[0].accesses[0];
    assert_eq!(*access, PlaceAccess::Discriminant);
    let way = [
        PlaceProjection::Field(0),
        PlaceProjection::Deref,
        PlaceProjection::Downcast("Some".to_owned()),
        PlaceProjection::Field(1),
        PlaceProjection::Deref,
        PlaceProjection::Index(2),
    ];
    assert_eq!((found.local, found.way.as_slice()), (1, way.as_slice()));
    assert_eq!(read.blocks[0].statements[0].from, "src/lib.rs:3:4: 5:6");
}

#[test]
fn what_is_not_known_is_refused() {
    for known in [
        "_0 = Add(copy _2, const 1_u64);",
        "_0 = f::<')'>(move _2, const \"a) -> bb7;\") -> [return: bb0, unwind continue];\n    }\n\n    bb1: {",
        "_4 = [const 1_u8; 3];",
        "_4 = Point { x: const 1_u8, y: move (_1.0: u8) };",
        "_4 = {closure@src/lib.rs:1:2: 3:4} { x: copy _1 };",
        "_4 = copy (*_1)[-1 of 2];",
        "_4 = &(*_1)[1:-1];",
        "_3 = copy _2 as isize (IntToInt);",
        "_0 = module::bar as fn(&u8) -> &u8 (PointerCoercion(ReifyFnPointer(Safe), Implicit));",
        "_0 = module::bar::<u8>;",
        "FakeRead(ForMatchGuard, _3);",
        "StorageLive(_3);",
        "AscribeUserType(_3, o, UserTypeProjection { base: UserType(0), projs: [] });",
        "switchInt(copy _2) -> [0: bb0, 340282366920938463463374607431768211455: bb1, otherwise: bb0];\n    }\n\n    bb1: {",
    ] {
        let read = MirBody::read(&body(known));
        assert!(read.is_ok(), "{known}: {read:?}");
    }
    for unknown in [
        "asm!(\"nop\", options()) -> [return: bb0];",
        "_0 = wrap_binder!(move _2; unsafe<> u8);",
        "_0 = copy (_1 as {opaque type}.0: u8);",
        "_0 = copy (_1.0: u8;",
        "_0 = copy _1.0;",
        "_0 = copy (*_1)[_2 of 3];",
        "Deinit(_0);",
        "Coverage::SpanMarker;",
        "tailcall f(move _2);",
        "goto -> bb77;",
        "goto -> [maybe: bb0];",
        "FakeRead(ForSomethingNew, _3);",
        "_0 = &two_phase _1;",
        "_0 = f(move _2) -> [return: bb0, unwind maybe];",
        "return;\n        _0 = const 1_u64;",
        "}\n    bb0: {",
        "_0 = const \"never closed;",
        // A place where a constant should be is an access that no rule would see.
        "_0 = Len((*_1));",
        "_4 = discriminant(_2);",
        "_0 = f(_2) -> [return: bb0, unwind continue];",
        "_4 = Point { x: (*_1) };",
        "_4 = [_2; 3];",
    ] {
        let text = body(&format!("        {unknown}"));
        assert!(MirBody::read(&text).is_err(), "{unknown}: {:?}", MirBody::read(&text));
    }
    let deep = format!("        _0 = copy {}_1{};", "(*".repeat(300), ")".repeat(300));
    assert!(MirBody::read(&body(&deep)).is_err(), "a place of 300 steps");
    let whole = body("        nop;");
    assert!(MirBody::read(&whole).is_ok());
    for cut in (1..whole.len()).rev().skip(2) {
        assert!(MirBody::read(&whole[..cut]).is_err(), "{:?}", &whole[..cut]);
    }
}

/// Each of the three checks of places finds this without the others.
#[test]
fn every_wall_stands_alone() {
    let fake = "_3 = discriminant((*_1));
        switchInt(move _3) -> [0: bb1, otherwise: bb2];
    }

    bb1: {
        falseEdge -> [real: bb3, imaginary: bb2];
    }

    bb2: {
        _0 = copy (((*_1) as Some).0: u64);
        return;
    }

    bb3: {
        _5 = &fake shallow (*_1);
        (*_1) = const NONE;
        switchInt(copy _2) -> [0: bb2, otherwise: bb4];
    }

    bb4: {
        FakeRead(ForMatchGuard, _5);";
    let read = MirBody::read(&body(fake)).expect("a body");
    assert_eq!(guards::check_guards(&read).map(|found| found.len()), Ok(1));
    assert_eq!(stale::check_stale(&read).map(|found| found.len()), Ok(1));
    assert_eq!(indexing::check_indexing(&read).map(|found| found.len()), Ok(0));
    let other = fake.replace("(*_1) = const NONE;", "_6 = &mut ((*_7).1: Other);");
    let read = MirBody::read(&body(&other)).expect("a body");
    assert!(guards::check_guards(&read).is_ok_and(|found| found.is_empty()), "what is elsewhere may change");
    let never = fake.replace("FakeRead(ForMatchGuard, _5);", "nop;").replace("(*_1) = const NONE;", "nop;");
    let read = MirBody::read(&body(&never)).expect("a body");
    assert_eq!(guards::check_guards(&read).map(|found| found.len()), Ok(1), "a guard that never holds");
    let taken = "_0 = move _4[0 of 3];\n        _0 = copy _4[_2];";
    let read = MirBody::read(&body(taken)).expect("a body");
    assert_eq!(indexing::check_indexing(&read).map(|found| found.len()), Ok(1));
}

#[test]
fn a_function_without_its_body_is_missed() {
    let function = |name: &str| {
        format!("fn {name}(_1: u8) -> u8 {{\n    bb0: {{\n        switchInt(copy _1) -> [0: bb0];\n    }}\n}}\n\n")
    };
    let mir = [function("a"), function("b::{closure#0}"), function("a")].concat();
    assert_eq!(coverage::missing_bodies(&mir, &["a", "a", "b::{closure#0}"]), [""; 0]);
    assert_eq!(coverage::missing_bodies(&mir, &["a", "b::{closure#0}"]), ["a"], "two of one name");
    assert_eq!(coverage::missing_bodies(&mir, &["a", "a", "b"]), ["b::{closure#0}"]);
    let trivial = "fn Some(_1: u8) -> A {\n    let mut _0: A;\n\n    bb0: {\n        _0 = Some(move _1);\n        return;\n    }\n}\n";
    assert_eq!(coverage::missing_bodies(trivial, &[]), [""; 0]);
}

#[test]
fn an_impl_trait_counts_in_every_spelling() {
    for text in [
        "impl show + 'l",
        "Box::<impl 'l + Show>::new(move _1)",
        "impl _Show",
        "impl (Debug)",
        "impl ?Sized + Debug",
        "impl str::Show",
        "Box<impl r#type>",
        "m::f::<impl u64x>::g",
    ] {
        assert!(has_impl_trait(text), "{text}");
    }
    for text in [
        "m::<impl at src/lib.rs:1:2: 3:4>::f",
        "<impl at src/lib.rs:1:2: 3:4>::f",
        "core::str::<impl str>::trim",
        "slice::<impl [T]>::iter",
        "core::num::<impl u64>::pow",
    ] {
        assert!(!has_impl_trait(text), "{text}");
    }
}

#[test]
fn a_function_gives_the_lifetimes_that_it_takes_at_each_call() {
    let gives = |text: &str| gives_what_it_takes(text, text.find("fn(").expect("a function"), &["T".to_owned()].into());
    for text in [
        "for<'a> fn(&'a str) -> &'a str {core::str::<impl str>::trim}>",
        "Map<I, for<'a, 'b> fn(&'a mut [u8], Two<'b>) -> (&'a mut u8, Two<'b>) {f}>",
        "fn() -> std::string::String {std::string::String::new}",
        "fn(&str) {f}",
    ] {
        assert!(gives(text), "{text}");
    }
    for text in [
        "fn() -> &str {make::<'_>}",
        "for<'a> fn(&'a u8) -> &str {make::<'_>}",
        "for<'a> fn(&'a u8) -> Two<'a, '_> {make}",
        "for<'a> fn(&'a u8) -> &'ab u8 {make}",
        "fn() -> T {make::<T>}",
        "fn() -> impl Debug {make}",
        "fn(u8",
    ] {
        assert!(!gives(text), "{text}");
    }
}

/// What a rule does not follow is no reason to let it pass.
#[test]
fn what_no_rule_follows_is_refused_with_its_place() {
    let read = MirBody::read(&body("        (_4.0: u8) = &fake shallow (*_1); // scope 0 at src/lib.rs:3:4: 5:6"));
    let unknown = guards::check_guards(&read.expect("a body")).expect_err("a borrow that is not followed");
    assert_eq!(unknown.from, "src/lib.rs:3:4: 5:6");
    let unknown = MirBody::read(&body("        Deinit(_0); // scope 0 at src/lib.rs:3:4: 5:6")).expect_err("unknown");
    assert_eq!((unknown.text.starts_with("Deinit"), unknown.from.as_str()), (true, "src/lib.rs:3:4: 5:6"));
    let head = "fn f(_1: u8)\nwhere u8: Sized\n";
    assert_eq!(coverage::missing_bodies(head, &["f"]), ["fn f(_1: u8)", "where u8: Sized"]);
    let memory = "alloc3 (size: 5, align: 1) { .. }\nalloc14 (fn: f)\nconst X: &str = const \"; // x\";\n";
    assert_eq!(coverage::missing_bodies(memory, &[]), [""; 0]);
    assert_eq!(coverage::missing_bodies("alloc (x)\nconst X: u8 = f();\n", &[]), ["alloc (x)", "const X: u8 = f();"]);
}

fn rules_for(line: &str) -> Option<&'static str> {
    let mir =
        format!("fn f(_1: &mut *const u8, _2: Holder<Box<T>>) -> () {{\n    let mut _3: T;\n        {line}\n}}\n");
    let found = bodies(&mir);
    let parameters = ["T".to_owned()].into();
    let known = SourceFacts { parameters: &parameters, plain: std::collections::HashSet::new() };
    found[0].refused(found[0].lines[1], &known).map(|(rule, _)| rule.id)
}

/// A line whose places have no type that is shown, or not in the line itself.
#[test]
fn a_line_that_does_not_tell_its_types_is_refused() {
    let object = "as alloc::boxed::Box<dyn Shown> (PointerCoercion(Unsize, Implicit));";
    assert_eq!(rules_for(&format!("_0 = move _3 {object}")), Some("erased"));
    assert_eq!(rules_for(&format!("_0 = move (*(_2.0: Rest)) {object}")), Some("erased"), "the type of the local");
    assert_eq!(rules_for(&format!("_0 = move ((*_2).0: T) {object}")), Some("erased"), "the type of the field");
    assert_eq!(rules_for(&format!("_0 = move _7 {object}")), Some("unknown-mir"));
    assert_eq!(rules_for(&format!("_0 = something(_2) {object}")), Some("unknown-mir"));
    assert_eq!(rules_for("(*_1) = next(move _2) -> [return: bb1, unwind continue];"), Some("address"));
    assert_eq!(rules_for("_7 = next(move _2) -> [return: bb1, unwind continue];"), Some("unknown-mir"));
    assert_eq!(rules_for("_3 = next(move _2) -> [return: bb1, unwind continue];"), None);
}

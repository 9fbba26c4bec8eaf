use super::*;

/// Runs a program as the kernel does, with the instructions that are used here, for a frame that begins at `net`.
fn run(program: &[BpfInstruction], ethertype: u16, packet: &[u8]) -> u32 {
    let (mut at, mut sum) = (0, 0u32);
    let byte = |k: u32| u32::from(packet[(k - 0xFFF0_0000) as usize]);
    loop {
        let step = program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
        match step.code {
            0x28 if step.k == 0xFFFF_F000 => sum = u32::from(ethertype),
            0x28 => sum = byte(step.k) << 8 | byte(step.k + 1),
            0x30 => sum = byte(step.k),
            0x05 => at += step.k as usize,
            0x14 => sum = sum.wrapping_sub(step.k),
            0x15 => at += jump(sum == step.k),
            0x35 => at += jump(sum >= step.k),
            0x45 => at += jump(sum & step.k != 0),
            0x06 => return step.k,
            0x16 => return sum,
            other => panic!("{other:#x}"),
        }
    }
}

#[test]
fn a_frame_goes_to_the_socket_of_its_port_and_all_others_to_the_first() {
    let program = fanout_program(7000, 4);
    let packet = |v4: bool, protocol: u8, port: u16| {
        let mut bytes = vec![0u8; 60];
        bytes[0] = if v4 { 0x45 } else { 0x60 };
        bytes[if v4 { 9 } else { 6 }] = protocol;
        let at = if v4 { 22 } else { 42 };
        bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
        bytes
    };
    for (v4, kind) in [(true, 0x0800), (false, 0x86DD)] {
        for port in 6990..7010 {
            let expected = if (7000..7004).contains(&port) { u32::from(port) - 7000 } else { 0 };
            assert_eq!(run(&program, kind, &packet(v4, 17, port)), expected, "{v4} {port}");
            assert_eq!(run(&program, kind, &packet(v4, 6, port)), 0);
        }
        assert_eq!(run(&program, 0x0806, &packet(v4, 17, 7002)), 0);
    }
    let mut fragment = packet(true, 17, 7002);
    fragment[7] = 1;
    assert_eq!(run(&program, 0x0800, &fragment), 0);
    let mut options = packet(true, 17, 7002);
    options[0] = 0x46;
    assert_eq!(run(&program, 0x0800, &options), 0);
}

#[test]
fn an_interface_that_is_not_there_is_an_error_that_says_what_to_do() {
    match PacketPort::open("no-such-if", PacketOptions::default()) {
        Err(error @ PacketError::NoInterface(_)) => assert!(error.to_string().contains("ip link"), "{error}"),
        Err(error @ PacketError::Permission) => assert!(error.to_string().contains("cap_net_raw"), "{error}"),
        other => panic!("{other:?}"),
    }
}

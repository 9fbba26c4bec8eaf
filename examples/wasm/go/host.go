package main

import "unsafe"

// Functions of the host: docs/modules.md says what each does. Others are declared in the same way.

//go:wasmimport sandstorm args_len
func hostArgsLen() uint32

//go:wasmimport sandstorm args_copy
func hostArgsCopy(to unsafe.Pointer)

//go:wasmimport sandstorm get_copy
func hostGetCopy(table uint64, key unsafe.Pointer, keyLen uint32, to unsafe.Pointer, capacity uint32, valueLen unsafe.Pointer) int32

//go:wasmimport sandstorm reply
func hostReply(bytes unsafe.Pointer, length uint32) int32

//go:wasmimport sandstorm fail
func hostFail(code int32, text unsafe.Pointer, length uint32) int32

// Statuses of the host, and what a call answers.
const (
	statusOK       = 0
	statusNotFound = 1
	statusTooLong  = 5
	statusInvalid  = 8
	statusOwn      = 100

	done   = 1
	failed = 2
)

func arguments() []byte {
	// Room for one byte at least: the address of nothing is not valid.
	args := make([]byte, hostArgsLen()+1)
	hostArgsCopy(unsafe.Pointer(&args[0]))
	return args[:len(args)-1]
}

// A record's value, and the status: statusOK, statusNotFound, or what else the host says.
func get(table uint64, key []byte) ([]byte, int32) {
	value, length := make([]byte, 4096), uint32(0)
	for {
		status := hostGetCopy(table, unsafe.Pointer(unsafe.SliceData(key)), uint32(len(key)),
			unsafe.Pointer(&value[0]), uint32(len(value)), unsafe.Pointer(&length))
		if status != statusTooLong {
			return value[:length], status
		}
		value = make([]byte, length)
	}
}

func reply(text string) int32 {
	if hostReply(unsafe.Pointer(unsafe.StringData(text)), uint32(len(text))) != statusOK {
		return fail(statusTooLong, "no room for the reply")
	}
	return done
}

func fail(code int32, text string) int32 {
	hostFail(code, unsafe.Pointer(unsafe.StringData(text)), uint32(len(text)))
	return failed
}

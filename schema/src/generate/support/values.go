package client

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// treeOf reads JSON, with its numbers as they are.
func treeOf(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var tree any
	err := decoder.Decode(&tree)
	return tree, err
}

func misfit(from any, expected string) error {
	found := "an object"
	switch from.(type) {
	case nil:
		found = "nothing"
	case bool:
		found = "a bool"
	case int64, float64, json.Number:
		found = "a number"
	case string, []byte:
		found = "a text"
	case []any:
		found = "a list"
	}
	return errors.New(found + " where " + expected + " is expected")
}

func nothingOf(any, *any) error { return nil }

func boolOf(from any, to *bool) error {
	value, ok := from.(bool)
	if !ok {
		return misfit(from, "a bool")
	}
	*to = value
	return nil
}

func integerOf[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](from any, to *T) error {
	var digits string
	switch from := from.(type) {
	case int64:
		digits = strconv.FormatInt(from, 10)
	case json.Number:
		digits = from.String()
	case []byte:
		// RESP's integers end at 2^63.
		digits = string(from)
	}
	if number, err := strconv.ParseInt(digits, 10, 64); err == nil {
		*to = T(number)
		if int64(*to) == number && (*to < 0) == (number < 0) {
			return nil
		}
	} else if number, err := strconv.ParseUint(digits, 10, 64); err == nil {
		*to = T(number)
		if uint64(*to) == number && *to > 0 {
			return nil
		}
	}
	return misfit(from, fmt.Sprintf("an integer of type %T", *to))
}

func floatOf[T float32 | float64](from any, to *T) error {
	switch from := from.(type) {
	case nil:
		// JSON has no number that is none, such as infinity.
		*to = T(math.NaN())
		return nil
	case float64:
		*to = T(from)
		return nil
	case int64:
		*to = T(from)
		return nil
	case json.Number:
		number, err := from.Float64()
		*to = T(number)
		return err
	}
	return misfit(from, "a number")
}

func textOf[T ~string](from any, to *T) error {
	switch from := from.(type) {
	case string:
		*to = T(from)
	case []byte:
		*to = T(from)
	default:
		return misfit(from, "a text")
	}
	return nil
}

// bytesOf reads bytes, which JSON has in base64.
func bytesOf(from any, to *[]byte) (err error) {
	switch from := from.(type) {
	case []byte:
		*to = from
	case string:
		*to, err = base64.StdEncoding.DecodeString(from)
	default:
		err = misfit(from, "bytes")
	}
	return err
}

func optionalOf[T any](read func(any, *T) error) func(any, **T) error {
	return func(from any, to **T) error {
		*to = nil
		if from == nil {
			return nil
		}
		*to = new(T)
		return read(from, *to)
	}
}

func listOf[T any](read func(any, *T) error) func(any, *[]T) error {
	return func(from any, to *[]T) error {
		values, ok := from.([]any)
		if !ok {
			return misfit(from, "a list")
		}
		*to = make([]T, len(values))
		for at, value := range values {
			if err := read(value, &(*to)[at]); err != nil {
				return fmt.Errorf("[%d]: %w", at, err)
			}
		}
		return nil
	}
}

// partReader reads a field of an object, or a value of a list, which has no name.
type partReader struct {
	name string
	read func(from any) error
}

func field[T any](name string, to *T, read func(any, *T) error) partReader {
	return partReader{name, func(from any) error { return read(from, to) }}
}

func part[T any](to *T, read func(any, *T) error) partReader { return field("", to, read) }

// fieldsOf reads the fields of an object.
func fieldsOf(from any, fields ...partReader) error {
	found, ok := from.(map[string]any)
	if !ok {
		return misfit(from, "an object")
	}
	for _, field := range fields {
		if err := field.read(found[field.name]); err != nil {
			return fmt.Errorf("%s: %w", field.name, err)
		}
	}
	return nil
}

// partsOf reads the values of a list of so many.
func partsOf(from any, parts ...partReader) error {
	found, ok := from.([]any)
	if !ok || len(found) != len(parts) {
		return misfit(from, fmt.Sprintf("a list of %d", len(parts)))
	}
	for at, part := range parts {
		if err := part.read(found[at]); err != nil {
			return fmt.Errorf("[%d]: %w", at, err)
		}
	}
	return nil
}

// variantOf reads the name of a variant, and what is in it, if anything is.
func variantOf(from any) (name string, inside any, err error) {
	if object, ok := from.(map[string]any); ok && len(object) == 1 {
		for name, inside := range object {
			return name, inside, nil
		}
	}
	err = textOf(from, &name)
	return name, nil, err
}

// oneIsSet is an error if several fields of an enum are set, or none.
func oneIsSet(name string, sets ...bool) error {
	count := 0
	for _, isSet := range sets {
		if isSet {
			count++
		}
	}
	switch count {
	case 0:
		return errors.New(name + ": no field is set")
	case 1:
		return nil
	}
	return errors.New(name + ": several fields are set, and it has one variant")
}

// notNil is an empty list for none, which JSON would have as null.
func notNil[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// each is a list of what its values are as JSON.
func each[T any](values []T, write func(T) any) []any {
	written := make([]any, 0, len(values))
	for _, value := range values {
		written = append(written, write(value))
	}
	return written
}

// ifAny is what a value is as JSON, if there is one.
func ifAny[T any](value *T, write func(T) any) any {
	if value == nil {
		return nil
	}
	return write(*value)
}

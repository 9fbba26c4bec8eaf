package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	// Bytes of an answer, at most: a server writes 1 MiB of a typed one.
	respAnswerBytes = 4 << 20
	// Values within values: types nest 16 deep, and each may be a variant with something in it.
	respDepth = 64
)

type respErrorLine string

type respProtocolError struct{ text string }

func (e *respProtocolError) Error() string { return e.text }

// respReader reads answers of RESP3.
type respReader struct {
	reader *bufio.Reader
	// Bytes that the answer may still have.
	left int
}

// next reads the next answer; what the server tells without being asked is passed over.
func (r *respReader) next() (any, error) {
	for {
		r.left = respAnswerBytes
		kind, err := r.reader.Peek(1)
		if err != nil {
			return nil, err
		}
		isPushed := kind[0] == '>'
		value, err := r.value(0)
		if err != nil || !isPushed {
			return value, err
		}
	}
}

func (r *respReader) charge(bytes int) error {
	if bytes > r.left {
		return &respProtocolError{fmt.Sprintf("an answer of over %d bytes", respAnswerBytes)}
	}
	r.left -= bytes
	return nil
}

func (r *respReader) value(depth int) (any, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	if depth > respDepth || line == "" {
		return nil, &respProtocolError{"values are nested too deep, or an empty line"}
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return respErrorLine(rest), nil
	case ':':
		number, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return nil, &respProtocolError{err.Error()}
		}
		return number, nil
	case '(':
		return json.Number(rest), nil
	case ',':
		number, err := strconv.ParseFloat(rest, 64)
		if err != nil {
			return nil, &respProtocolError{err.Error()}
		}
		return number, nil
	case '#':
		return rest == "t", nil
	case '_':
		return nil, nil
	case '$', '=', '!':
		return r.bulk(kind, rest)
	case '*', '~', '>':
		return r.list(rest, 1, depth)
	case '%':
		return r.object(rest, depth)
	case '|':
		if _, err := r.list(rest, 2, depth); err != nil {
			return nil, err
		}
		return r.value(depth + 1)
	}
	return nil, &respProtocolError{fmt.Sprintf("an answer that begins with %q", kind)}
}

func (r *respReader) line() (string, error) {
	var line []byte
	for {
		part, err := r.reader.ReadSlice('\n')
		if tooLong := r.charge(len(part)); tooLong != nil {
			return "", tooLong
		}
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
	if !bytes.HasSuffix(line, []byte("\r\n")) {
		return "", &respProtocolError{"a line without its end"}
	}
	return string(line[:len(line)-2]), nil
}

// count reads how many values there are, of which each has bytes at least.
func (r *respReader) count(digits string, bytes int) (int, error) {
	count, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || int(count) > r.left/bytes {
		return 0, &respProtocolError{"a length that cannot be: " + digits}
	}
	return int(count), nil
}

func (r *respReader) bulk(kind byte, digits string) (any, error) {
	if digits == "-1" {
		return nil, nil
	}
	length, err := r.count(digits, 1)
	if err != nil {
		return nil, err
	}
	if err := r.charge(length); err != nil {
		return nil, err
	}
	value := make([]byte, length+2)
	if _, err := io.ReadFull(r.reader, value); err != nil {
		return nil, err
	}
	value = value[:length]
	switch {
	case kind == '!':
		return respErrorLine(value), nil
	case kind == '=' && length >= 4:
		return value[4:], nil
	}
	return value, nil
}

func (r *respReader) list(digits string, each, depth int) (any, error) {
	if digits == "-1" {
		return nil, nil
	}
	count, err := r.count(digits, 3*each)
	if err != nil {
		return nil, err
	}
	values := make([]any, 0, count*each)
	for len(values) < count*each {
		value, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

func (r *respReader) object(digits string, depth int) (any, error) {
	pairs, err := r.list(digits, 2, depth)
	if err != nil {
		return nil, err
	}
	values, _ := pairs.([]any)
	object := make(map[string]any, len(values)/2)
	for at := 0; at < len(values); at += 2 {
		var name string
		if err := textOf(values[at], &name); err != nil {
			return nil, &respProtocolError{"a name in a map: " + err.Error()}
		}
		object[name] = values[at+1]
	}
	return object, nil
}

// errorOf is the error that a server's line says, with the code that it has over HTTP.
func errorOf(line string) *SandstormError {
	word, rest, _ := strings.Cut(line, " ")
	// As in "FAILED (not_found) no such order".
	name, text := "unknown", rest
	if strings.HasPrefix(rest, "(") {
		if said, behind, ok := strings.Cut(rest[1:], ")"); ok {
			name, text = said, strings.TrimPrefix(behind, " ")
		}
	}
	switch word {
	case "FAILED":
		return &SandstormError{Code: "failed", Kind: name, Message: text}
	case "KILLED":
		return &SandstormError{Code: "killed", Cause: name, Message: "the call was killed (" + name + "): " + text}
	case "OVERQUOTA":
		return failure("over_quota", rest, nil)
	case "TOOLARGE":
		return failure("too_large", rest, nil)
	case "BUSY":
		return failure("overloaded", rest, nil)
	case "LOADING":
		return failure("shutting_down", rest, nil)
	case "MISCONF":
		return failure("not_durable", rest, nil)
	case "NOAUTH", "WRONGPASS":
		return failure("unauthenticated", rest, nil)
	case "ERR":
		return failure(refusal(rest), rest, nil)
	case "MOVED":
		// As in "MOVED 130 10.0.0.2:6379".
		_, owner, _ := strings.Cut(rest, " ")
		return failure("wrong_server", rest, &respElsewhere{owner})
	case "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT":
		return failure("wrong_server", rest, &respElsewhere{})
	}
	return failure(strings.ToLower(word), rest, nil)
}

// refusal is what an error without a word of its own is about.
func refusal(text string) string {
	switch {
	case text == "Function not found", strings.HasPrefix(text, "Version not found: "):
		return "unknown_extension"
	case strings.HasPrefix(text, "Function not found: "):
		return "unknown_function"
	case strings.HasPrefix(text, "the call has run"):
		return "reply"
	case strings.HasPrefix(text, "the JSON of a typed function has at most"):
		return "too_large"
	}
	return "invalid"
}

// Replies with the three most frequent words of a document.
//
// Arguments: table u64 (little-endian), then the document's key. Reply: each word with its count.
package main

import (
	"encoding/binary"
	"sort"
	"strconv"
	"strings"
	"unicode"
)

const most = 3

//go:wasmexport sandstorm_start
func start(slot, invocation int32) int32 {
	args := arguments()
	if len(args) <= 8 {
		return fail(statusInvalid, "args: table u64, key")
	}
	text, status := get(binary.LittleEndian.Uint64(args), args[8:])
	switch status {
	case statusOK:
	case statusNotFound:
		return fail(statusNotFound, "there is no such document")
	default:
		return fail(statusOwn, "the document cannot be read: status "+strconv.Itoa(int(status)))
	}
	counts := map[string]int{}
	isBetween := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for _, word := range strings.FieldsFunc(strings.ToLower(string(text)), isBetween) {
		counts[word]++
	}
	words := make([]string, 0, len(counts))
	for word := range counts {
		words = append(words, word)
	}
	sort.Slice(words, func(a, b int) bool {
		if counts[words[a]] != counts[words[b]] {
			return counts[words[a]] > counts[words[b]]
		}
		return words[a] < words[b]
	})
	if len(words) > most {
		words = words[:most]
	}
	for at, word := range words {
		words[at] = word + " " + strconv.Itoa(counts[word])
	}
	return reply(strings.Join(words, ", "))
}

func main() {}

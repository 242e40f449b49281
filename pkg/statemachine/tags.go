package statemachine

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Tags are the tags of a command: lines "key=value", sorted by key, so that equal tags are equal
// texts. A key holds no equals sign, and a value no control character.
type Tags string

// SystemTag begins the keys of tags that the system sets; a command may have none of them.
const SystemTag = "lucius."

// The limits of tags: how many a command may have, and the lengths in bytes.
const (
	MaxTags     = 8
	MaxTagKey   = 32
	MaxTagValue = 128
)

var tagKey = regexp.MustCompile(`^[a-z][a-z0-9_.-]*$`)

// TagFault returns what is wrong with a tag, empty if nothing is.
func TagFault(key, value string) string {
	switch {
	case len(key) > MaxTagKey || !tagKey.MatchString(key):
		return fmt.Sprintf("must have a key of 1 to %d lower-case letters, digits, '_', '.' and '-' that begins with a letter", MaxTagKey)
	case value == "" || len(value) > MaxTagValue:
		return fmt.Sprintf("must have a value of 1 to %d bytes", MaxTagValue)
	case strings.ContainsFunc(value, unicode.IsControl) || !utf8.ValidString(value):
		return "must have a value in UTF-8 without control characters"
	}
	return ""
}

// ParseTags returns tags that are given as "key=value". The error says which one is wrong.
func ParseTags(texts []string) (Tags, error) {
	if len(texts) > MaxTags {
		return "", fmt.Errorf("tag must be given at most %d times, not %d", MaxTags, len(texts))
	}
	of := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		fault := TagFault(key, value)
		if _, twice := of[key]; twice {
			fault = "must have another key: it is named twice"
		}
		if !ok {
			fault = "must be key=value"
		}
		if fault != "" {
			return "", fmt.Errorf("tag %q %s", text, fault)
		}
		of[key] = value
	}
	return NewTags(of), nil
}

// NewTags returns the tags of that map.
func NewTags(of map[string]string) Tags {
	lines := make([]string, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, key+"="+of[key])
	}
	return Tags(strings.Join(lines, "\n"))
}

// All yields each tag as "key=value", in the order of the keys.
func (t Tags) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.SplitSeq(string(t), "\n") {
			if line != "" && !yield(line) {
				return
			}
		}
	}
}

// Map returns the tags by their keys, nil if there are none.
func (t Tags) Map() map[string]string {
	var of map[string]string
	for tag := range t.All() {
		if of == nil {
			of = map[string]string{}
		}
		key, value, _ := strings.Cut(tag, "=")
		of[key] = value
	}
	return of
}

// First returns the first tag, empty if there is none.
func (t Tags) First() string {
	first, _, _ := strings.Cut(string(t), "\n")
	return first
}

// Include reports whether all wanted tags are among these.
func (t Tags) Include(wanted Tags) bool {
	for tag := range wanted.All() {
		if !strings.Contains("\n"+string(t)+"\n", "\n"+tag+"\n") {
			return false
		}
	}
	return true
}

// With returns the tags with more, whose values count for a key of both. The error says that they
// are more than a command may have.
func (t Tags) With(more Tags) (Tags, error) {
	of := t.Map()
	if of == nil {
		of = map[string]string{}
	}
	maps.Copy(of, more.Map())
	together := NewTags(of)
	if n := len(together.Own().Map()); n > MaxTags {
		return "", fmt.Errorf("there must be at most %d tags, and these are %d", MaxTags, n)
	}
	return together, nil
}

// Own returns the tags without those of the system.
func (t Tags) Own() Tags {
	var own []string
	for tag := range t.All() {
		if !strings.HasPrefix(tag, SystemTag) {
			own = append(own, tag)
		}
	}
	return Tags(strings.Join(own, "\n"))
}

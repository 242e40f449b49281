package tablestore

import (
	"strconv"
	"time"
)

// Kind is the type of a [Value].
type Kind uint8

// The kinds of values that every driver stores exactly.
const (
	KindString Kind = iota + 1
	KindInt
	KindBool
	KindTime
)

// Property is one named value of a row. Names match [A-Za-z_][A-Za-z0-9_]*.
type Property struct {
	Name  string
	Value Value
}

// Value is a string, a 64-bit integer, a bool or a time (UTC, to the
// millisecond). The zero Value is no value and is never stored.
type Value struct {
	kind Kind
	num  int64
	str  string
}

// String returns a string value: valid UTF-8.
func String(s string) Value { return Value{kind: KindString, str: s} }

// Int returns an integer value.
func Int(n int64) Value { return Value{kind: KindInt, num: n} }

// Bool returns a boolean value.
func Bool(b bool) Value {
	if b {
		return Value{kind: KindBool, num: 1}
	}
	return Value{kind: KindBool}
}

// Time returns a time value, truncated to the millisecond.
func Time(t time.Time) Value { return Value{kind: KindTime, num: t.UnixMilli()} }

// Now returns the current time as rows store it: in UTC, in whole milliseconds.
func Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Kind returns the value's type, or 0 for the zero Value.
func (v Value) Kind() Kind { return v.kind }

// String returns the string, or "" for another kind.
func (v Value) String() string {
	if v.kind != KindString {
		return ""
	}
	return v.str
}

// Int returns the integer, or 0 for another kind.
func (v Value) Int() int64 {
	if v.kind != KindInt {
		return 0
	}
	return v.num
}

// Bool returns the boolean, or false for another kind.
func (v Value) Bool() bool { return v.kind == KindBool && v.num != 0 }

// Time returns the time in UTC, or the zero time for another kind.
func (v Value) Time() time.Time {
	if v.kind != KindTime {
		return time.Time{}
	}
	return time.UnixMilli(v.num).UTC()
}

// Equal reports whether both are the same kind and value.
func (v Value) Equal(w Value) bool { return v == w }

// Properties are a row's values. The order has no meaning; each name occurs at
// most once.
type Properties []Property

// Get returns the value of that name, or the zero Value if there is none.
func (p Properties) Get(name string) Value {
	for i := range p {
		if p[i].Name == name {
			return p[i].Value
		}
	}
	return Value{}
}

// Equal reports whether both hold the same names and values, in any order.
func (p Properties) Equal(q Properties) bool {
	if len(p) != len(q) {
		return false
	}
	values := make(map[string]Value, len(p))
	for _, property := range p {
		values[property.Name] = property.Value
	}
	for _, property := range q {
		if value, ok := values[property.Name]; !ok || !value.Equal(property.Value) {
			return false
		}
	}
	return true
}

// AppendLarge appends text (valid UTF-8) under that name, split over as many
// properties as its size needs: name, name_1, name_2 and so on, each of at most
// [MaxStringUnits] and of whole characters. Empty text is one empty property.
func AppendLarge(properties Properties, name string, text []byte) Properties {
	rest := string(text)
	for i := 0; i == 0 || rest != ""; i++ {
		n := wholeCharacters(rest, MaxStringUnits)
		properties = append(properties, Property{Name: chunkName(name, i), Value: String(rest[:n])})
		rest = rest[n:]
	}
	return properties
}

// wholeCharacters returns the length of the longest prefix of s that has at
// most that many UTF-16 code units and ends between two characters.
func wholeCharacters(s string, units int) int {
	if len(s) <= units { // A character has no more UTF-16 code units than bytes.
		return len(s)
	}
	for i, r := range s {
		if units--; r > 0xFFFF {
			units--
		}
		if units < 0 {
			return i
		}
	}
	return len(s)
}

// Large returns the text that [AppendLarge] stored under that name, or nil if
// there is none.
func Large(properties Properties, name string) []byte {
	if properties.Get(name).Kind() != KindString {
		return nil
	}
	text := []byte{}
	for i := 0; ; i++ {
		chunk := properties.Get(chunkName(name, i))
		if chunk.Kind() != KindString {
			return text
		}
		text = append(text, chunk.String()...)
	}
}

func chunkName(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + "_" + strconv.Itoa(i)
}

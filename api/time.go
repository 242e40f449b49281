package api

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"
)

// timeLayout is RFC 3339 with exactly three fractional digits.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Time is a point in time on the wire: written in UTC with milliseconds,
// smaller units cut off, and read in any RFC 3339 form. A time that has no such form in UTC,
// where its year would be -1 or 10000, is refused: no client could read it.
type Time struct { //nolint:recvcheck // Reading fills it in, writing copies it.
	// The field keeps the type from being convertible to the runtime's Date: the client
	// would send only the day of a time in a query.
	_ struct{}
	time.Time
}

// NewTime returns t in its wire form.
func NewTime(t time.Time) Time { return Time{Time: t} }

// String returns the wire form.
func (t Time) String() string { return t.UTC().Format(timeLayout) }

// MarshalText writes the wire form, in queries.
func (t Time) MarshalText() ([]byte, error) { return t.UTC().AppendFormat(nil, timeLayout), nil }

// MarshalJSON writes the time in UTC with milliseconds.
func (t Time) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, len(timeLayout)+2)
	out = append(out, '"')
	out = t.UTC().AppendFormat(out, timeLayout)
	return append(out, '"'), nil
}

// UnmarshalJSON reads any RFC 3339 time; null leaves t as it is. Anything else
// is a [json.UnmarshalTypeError], so that the decoder can name the field.
func (t *Time) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	var parsed time.Time
	if err := parsed.UnmarshalJSON(data); err != nil || !writable(parsed) {
		return &json.UnmarshalTypeError{Value: string(data), Type: reflect.TypeFor[Time]()}
	}
	t.Time = parsed
	return nil
}

// writable reports whether RFC 3339 has a form of the time in UTC.
func writable(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

// Bind reads any RFC 3339 time from the query of a request. Without it the
// generated glue would parse a Time as a date.
func (t *Time) Bind(src string) error {
	parsed, err := time.Parse(time.RFC3339Nano, src)
	if err != nil || !writable(parsed) {
		return &time.ParseError{Layout: time.RFC3339, Value: src, Message: ": not an RFC 3339 time"}
	}
	t.Time = parsed
	return nil
}

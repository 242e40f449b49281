package fakeservicebus

import "time"

// The values of AMQP that Go has no type for, for tests of the codec.
type (
	Symbol = symbol
	UUID   = uuid
)

// Describe puts a value under a descriptor.
func Describe(descriptor, value any) any { return described{descriptor, value} }

// Map makes a map of keys and values in turn.
func Map(keysAndValues ...any) any {
	entries := pairs{}
	for i := 0; i < len(keysAndValues); i += 2 {
		entries = append(entries, pair{keysAndValues[i], keysAndValues[i+1]})
	}
	return entries
}

// Symbols returns an array of symbols in the broker's encoding.
func Symbols(names ...string) any { return symbols(names...) }

// Timestamps returns an array of timestamps in the broker's encoding.
func Timestamps(times ...time.Time) any { return timestamps(times) }

// Encode writes a value.
func Encode(v any) []byte { return appendValue(nil, v) }

// Decode reads a value and says how many bytes are left.
func Decode(data []byte) (v any, left int, err error) {
	d := decoder{data: data}
	v, err = d.value()
	return v, len(d.rest()), err
}

// Items returns the items of an array.
func Items(v any) []any {
	a, _ := v.(array)
	return a.items
}

// ParseMessages reads a transfer, which may be a batch.
func ParseMessages(data []byte, batch bool) (ids []string, err error) {
	t := incoming{payload: data}
	if batch {
		t.format = batchFormat
	}
	messages, err := t.messages()
	for _, m := range messages {
		ids = append(ids, m.id)
	}
	return ids, err
}

// Frame writes a frame with one performative.
func Frame(kind byte, channel uint16, code byte, fields ...any) []byte {
	return appendFrame(nil, kind, channel, code, fields, nil)
}

// Section writes a described value.
func Section(code byte, value any) []byte { return appendDescribed(nil, code, value) }

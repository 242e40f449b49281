package ledger

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// schemaVersion is written to every row. A replica reads rows of its own version
// and of the next one, whose new columns it keeps without reading them.
const schemaVersion = 1

const columnVersion = "v"

// codec holds the columns of a row that stores a T.
type codec[T any] struct {
	columns []column[T]
	index   map[string]int
}

// column is one column of a row.
type column[T any] struct {
	name string
	// get sets the value, or leaves it zero to omit the column.
	get func(row *T, value *tablestore.Value)
	set func(row *T, value *tablestore.Value) error
}

func newCodec[T any](columns ...column[T]) *codec[T] {
	c := &codec[T]{columns: append([]column[T]{version[T]()}, columns...), index: make(map[string]int, len(columns)+1)}
	for i := range c.columns {
		c.index[c.columns[i].name] = i
	}
	return c
}

// encode returns the row's properties. Unknown columns of loaded, the row that is
// replaced, are kept, so that an older replica does not erase a newer one's fields.
func (c *codec[T]) encode(row *T, loaded tablestore.Properties) tablestore.Properties {
	properties := make(tablestore.Properties, 0, len(c.columns))
	for i := range c.columns {
		n := len(properties)
		p := &properties[:n+1][n] // still zero: an omitted column does not set it
		if c.columns[i].get(row, &p.Value); p.Value.Kind() != 0 {
			p.Name = c.columns[i].name
			properties = properties[:n+1]
		}
	}
	next := 0
	for i := range loaded {
		if at := c.find(loaded[i].Name, next); at >= 0 {
			next = at + 1
		} else {
			properties = append(properties, loaded[i])
		}
	}
	return properties
}

// decode sets row from the stored properties, and skips unknown ones.
func (c *codec[T]) decode(stored *tablestore.Row, row *T) error {
	next := 0
	for i := range stored.Properties {
		p := &stored.Properties[i]
		at := c.find(p.Name, next)
		if at < 0 {
			continue
		}
		next = at + 1
		if err := c.columns[at].set(row, &p.Value); err != nil {
			return fmt.Errorf("row %s of %s, column %s: %w", stored.Key.Row, stored.Key.Partition, p.Name, err)
		}
	}
	return nil
}

// find returns the index of the column of that name, or -1. Most stores keep the
// order in which a row was encoded, so it first tries next and a few columns after
// it, since columns may be omitted.
func (c *codec[T]) find(name string, next int) int {
	const gap = 4
	for i := next; i < min(next+gap, len(c.columns)); i++ {
		if c.columns[i].name == name {
			return i
		}
	}
	if i, ok := c.index[name]; ok {
		return i
	}
	return -1
}

// largeRow returns the properties of a row that holds one large value.
func largeRow(name string, data []byte) tablestore.Properties {
	version := tablestore.Property{Name: columnVersion, Value: tablestore.Int(schemaVersion)}
	return tablestore.AppendLarge(tablestore.Properties{version}, name, data)
}

// version is the first column of every row. Rows of a schema that is too new to be
// changed safely are refused.
func version[T any]() column[T] {
	return column[T]{columnVersion,
		func(_ *T, value *tablestore.Value) { *value = tablestore.Int(schemaVersion) },
		func(_ *T, value *tablestore.Value) error {
			if v := value.Int(); v > schemaVersion+1 {
				return fmt.Errorf("schema version %d is newer than this program can handle", v)
			}
			return nil
		}}
}

// scalar is a column of one value. store sets the value of a field, or leaves it
// zero to omit the column.
func scalar[T, F any](name string, field func(*T) *F, store func(*F, *tablestore.Value), load func(*tablestore.Value) F) column[T] {
	return column[T]{name,
		func(row *T, value *tablestore.Value) { store(field(row), value) },
		func(row *T, value *tablestore.Value) error {
			*field(row) = load(value)
			return nil
		}}
}

// text is a column of text, omitted if empty.
func text[T any, S ~string](name string, field func(*T) *S) column[T] {
	return scalar(name, field, func(s *S, value *tablestore.Value) {
		if *s != "" {
			*value = tablestore.String(string(*s))
		}
	}, func(value *tablestore.Value) S { return S(value.String()) })
}

// integer is a column of a number. It is never omitted, because a filter for 0 does
// not match a missing column.
func integer[T any, N ~int | ~int64](name string, field func(*T) *N) column[T] {
	return scalar(name, field, func(n *N, value *tablestore.Value) { *value = tablestore.Int(int64(*n)) },
		func(value *tablestore.Value) N { return N(value.Int()) })
}

// millis is a column of a duration in milliseconds, never omitted.
func millis[T any](name string, field func(*T) *time.Duration) column[T] {
	return scalar(name, field, func(d *time.Duration, value *tablestore.Value) { *value = tablestore.Int(d.Milliseconds()) },
		func(value *tablestore.Value) time.Duration { return time.Duration(value.Int()) * time.Millisecond })
}

// flag is a column of a bool, omitted if false.
func flag[T any](name string, field func(*T) *bool) column[T] {
	return scalar(name, field, func(b *bool, value *tablestore.Value) {
		if *b {
			*value = tablestore.Bool(true)
		}
	}, (*tablestore.Value).Bool)
}

// instant is a column of a time, omitted if zero.
func instant[T any](name string, field func(*T) *time.Time) column[T] {
	return scalar(name, field, func(at *time.Time, value *tablestore.Value) {
		if !at.IsZero() {
			*value = tablestore.Time(*at)
		}
	}, (*tablestore.Value).Time)
}

// document is a column of JSON, omitted if empty. It is stored as text, which any
// viewer of the table shows.
func document[T any](name string, field func(*T) *json.RawMessage) column[T] {
	return scalar(name, field, func(data *json.RawMessage, value *tablestore.Value) {
		if len(*data) > 0 {
			*value = tablestore.String(string(*data))
		}
	}, func(value *tablestore.Value) json.RawMessage { return []byte(value.String()) })
}

// list is a column of several values in one text, omitted if empty.
func list[T, V any](name string, field func(*T) *[]V, format func([]V) string, parse func(string) ([]V, error)) column[T] {
	return column[T]{name,
		func(row *T, value *tablestore.Value) {
			if values := *field(row); len(values) > 0 {
				*value = tablestore.String(format(values))
			}
		},
		func(row *T, value *tablestore.Value) (err error) {
			*field(row), err = parse(value.String())
			return err
		}}
}

// within turns the columns of a part into columns of the row that contains it.
func within[T, P any](part func(*T) *P, columns []column[P]) []column[T] {
	out := make([]column[T], len(columns))
	for i, c := range columns {
		out[i] = column[T]{c.name,
			func(row *T, value *tablestore.Value) { c.get(part(row), value) },
			func(row *T, value *tablestore.Value) error { return c.set(part(row), value) }}
	}
	return out
}

// formatDelays joins delays in milliseconds by commas.
func formatDelays(delays []time.Duration) string {
	b := make([]byte, 0, 64)
	for i, d := range delays {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d.Milliseconds(), 10)
	}
	return string(b)
}

func parseDelays(s string) ([]time.Duration, error) {
	delays := make([]time.Duration, 0, strings.Count(s, ",")+1)
	for part := range strings.SplitSeq(s, ",") {
		ms, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("bad list of delays %q", s)
		}
		delays = append(delays, time.Duration(ms)*time.Millisecond)
	}
	return delays, nil
}

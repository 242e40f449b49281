package tablestore

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// schemaVersion is written to every row. A replica reads rows of its own version
// and of the next one, whose new columns it keeps without reading them.
const schemaVersion = 1

const columnVersion = "v"

// RowFormat is the version of the rows of a store that has no version of its own: one that is not an [AtomicStore]. It
// rises with each change of rows that programs before it cannot read, as the layout of package pebblestore does.
const RowFormat = 1

// CheckRowFormat returns an error for rows of another format than RowFormat.
func CheckRowFormat(format int) error {
	if format == RowFormat {
		return nil
	}
	return fmt.Errorf("the store's rows have format %d, and this program reads %d: use the version that wrote them, or new tables",
		format, RowFormat)
}

// Codec stores a T as a row. Each field with a tag such as `column:"job_id"` is a
// column, also in structs within T and in those that its pointers lead to, which must be
// set. The field's type says how it is stored:
//
//	text             as it is; omitted if empty
//	int, int64       as a number, also 0: a filter for 0 does not match a missing column
//	time.Duration    in milliseconds, also 0
//	bool             omitted if false
//	time.Time        omitted if zero
//	json.RawMessage  as text, which any viewer of the table shows; omitted if empty
//	[]string         as the lines of a text; omitted if empty
//	[]time.Duration  in milliseconds, joined by commas; omitted if empty
//	any other        as JSON, by [AppendLarge]; omitted if zero
//
// It is safe for concurrent use.
type Codec[T any] struct {
	columns []column
	index   map[string]int
}

// column is one column of a row.
type column struct {
	name string
	// typ is the field's type. It is offsets[n-1] bytes into the struct whose pointer is
	// offsets[n-2] bytes into the one before, and so on.
	typ     reflect.Type
	offsets []uintptr
	// get returns the value, zero to omit the column. Both are nil if the column is JSON.
	// They take the field's address: reflection would double the time of each commit's rows.
	get func(field unsafe.Pointer) Value
	set func(field unsafe.Pointer, value Value) error
}

// Format is how a [Codec] stores one column.
type Format column

// FormatAs stores the column of that name, a V, as the text that format returns and parse
// reads. The column is omitted if the text is empty.
func FormatAs[V any](name string, format func(V) string, parse func(string) (V, error)) Format {
	one := typed(func(v *V) Value { return text(format(*v)) }, func(value Value) (V, error) { return parse(value.String()) })
	one.name, one.typ = name, reflect.TypeFor[V]()
	return Format(one)
}

// NewCodec returns the codec of T, a struct. It panics if two fields are one column, or the
// type of a format is not that of the field.
func NewCodec[T any](formats ...Format) *Codec[T] {
	c := &Codec[T]{index: map[string]int{}}
	c.addStruct(reflect.TypeFor[T](), []uintptr{0}, formats)
	return c
}

// addStruct adds the columns of a struct that is found at those offsets.
func (c *Codec[T]) addStruct(t reflect.Type, offsets []uintptr, formats []Format) {
	for field := range t.Fields() {
		at := slices.Clone(offsets)
		at[len(at)-1] += field.Offset
		name, inner := field.Tag.Get("column"), field.Type
		if name != "" {
			one := columnOf(inner)
			if i := slices.IndexFunc(formats, func(f Format) bool { return f.name == name }); i >= 0 {
				one = column(formats[i])
			}
			if one.typ != nil && one.typ != inner {
				panic("column " + name + " is no " + one.typ.String())
			}
			one.name, one.typ, one.offsets = name, inner, at
			c.add(one)
			continue
		}
		if inner.Kind() == reflect.Pointer {
			inner, at = inner.Elem(), append(at, 0)
		}
		if inner.Kind() == reflect.Struct {
			c.addStruct(inner, at, formats)
		}
	}
}

func (c *Codec[T]) add(one column) {
	if _, twice := c.index[one.name]; twice {
		panic("two fields are column " + one.name)
	}
	c.index[one.name] = len(c.columns)
	c.columns = append(c.columns, one)
}

// Without returns the codec without the columns of those names, which it does not know.
func (c *Codec[T]) Without(names ...string) *Codec[T] {
	less := &Codec[T]{index: map[string]int{}}
	for _, one := range c.columns {
		if !slices.Contains(names, one.name) {
			less.add(one)
		}
	}
	return less
}

// Encode returns the row's properties. Unknown columns of loaded, the row that is
// replaced, are kept, so that an older replica does not erase a newer one's fields. It
// panics if JSON cannot encode a field.
func (c *Codec[T]) Encode(row *T, loaded Properties) Properties {
	properties := make(Properties, 1, len(c.columns)+1)
	properties[0] = Property{Name: columnVersion, Value: Int(schemaVersion)}
	for i := range c.columns {
		one := &c.columns[i]
		field := one.field(unsafe.Pointer(row)) //nolint:gosec // of a T, in which the offsets lie
		if one.get != nil {
			if value := one.get(field); value.kind != 0 {
				properties = append(properties, Property{Name: one.name, Value: value})
			}
		} else if v := reflect.NewAt(one.typ, field); !v.Elem().IsZero() {
			data, err := json.Marshal(v.Interface())
			if err != nil {
				panic(fmt.Sprintf("column %s: %v", one.name, err))
			}
			properties = AppendLarge(properties, one.name, data)
		}
	}
	next := 0
	for i := range loaded {
		name := loaded[i].Name
		if at := c.find(name, next); at >= 0 {
			next = at + 1
		} else if name != columnVersion && !c.continues(name) {
			properties = append(properties, loaded[i])
		}
	}
	return properties
}

// Decode sets row from the stored properties, and skips unknown ones. It refuses a row of a
// schema that is too new to be changed safely.
func (c *Codec[T]) Decode(stored *Row, row *T) error {
	next := 0
	for i := range stored.Properties {
		p := &stored.Properties[i]
		at, err := c.find(p.Name, next), error(nil)
		if at < 0 && p.Name == columnVersion {
			if v := p.Value.Int(); v > schemaVersion+1 {
				err = fmt.Errorf("schema version %d is newer than this program can handle", v)
			}
		} else if at >= 0 {
			next = at + 1
			one := &c.columns[at]
			field := one.field(unsafe.Pointer(row)) //nolint:gosec // of a T, in which the offsets lie
			if one.set != nil {
				err = one.set(field, p.Value)
			} else {
				err = json.Unmarshal(Large(stored.Properties, one.name), reflect.NewAt(one.typ, field).Interface())
			}
		}
		if err != nil {
			return fmt.Errorf("row %s of %s, column %s: %w", stored.Key.Row, stored.Key.Partition, p.Name, err)
		}
	}
	return nil
}

// ScanAll returns what all rows of the query store. Its error is that of [ScanAll], or names
// the row that cannot be read.
func (c *Codec[T]) ScanAll(ctx context.Context, store Store, query Query) ([]T, error) {
	rows, err := ScanAll(ctx, store, query)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(rows))
	for i := range rows {
		if err := c.Decode(&rows[i], &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// find returns the index of the column of that name, or -1. Most stores keep the
// order in which a row was encoded, so it first tries next and a few columns after
// it, since columns may be omitted.
func (c *Codec[T]) find(name string, next int) int {
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

// continues reports whether the property is a part of a JSON column, but not its first.
func (c *Codec[T]) continues(name string) bool {
	end := max(strings.LastIndexByte(name, '_'), 0)
	i, ok := c.index[name[:end]]
	_, err := strconv.Atoi(name[end+1:])
	return ok && err == nil && c.columns[i].set == nil
}

// field returns the address of the column's field in a row.
func (c *column) field(row unsafe.Pointer) unsafe.Pointer {
	for _, pointer := range c.offsets[:len(c.offsets)-1] {
		row = *(*unsafe.Pointer)(unsafe.Add(row, pointer))
	}
	return unsafe.Add(row, c.offsets[len(c.offsets)-1])
}

// columnOf returns the column of a field of that type.
func columnOf(t reflect.Type) column {
	switch t {
	case reflect.TypeFor[time.Time]():
		return typed(func(at *time.Time) Value {
			if at.IsZero() {
				return Value{}
			}
			return Time(*at)
		}, func(value Value) (time.Time, error) { return value.Time(), nil })
	case reflect.TypeFor[time.Duration]():
		return typed(func(d *time.Duration) Value { return Int(d.Milliseconds()) },
			func(value Value) (time.Duration, error) { return time.Duration(value.Int()) * time.Millisecond, nil })
	case reflect.TypeFor[json.RawMessage]():
		return typed(func(data *json.RawMessage) Value { return text(string(*data)) },
			func(value Value) (json.RawMessage, error) { return []byte(value.String()), nil })
	case reflect.TypeFor[[]string]():
		return typed(func(lines *[]string) Value { return text(strings.Join(*lines, "\n")) },
			func(value Value) ([]string, error) { return strings.Split(value.String(), "\n"), nil })
	case reflect.TypeFor[[]time.Duration]():
		return typed(func(delays *[]time.Duration) Value { return text(formatDelays(*delays)) },
			func(value Value) ([]time.Duration, error) { return parseDelays(value.String()) })
	}
	switch t.Kind() {
	case reflect.String:
		return typed(func(s *string) Value { return text(*s) }, func(value Value) (string, error) { return value.String(), nil })
	case reflect.Int:
		return typed(func(n *int) Value { return Int(int64(*n)) }, func(value Value) (int, error) { return int(value.Int()), nil })
	case reflect.Int64:
		return typed(func(n *int64) Value { return Int(*n) }, func(value Value) (int64, error) { return value.Int(), nil })
	case reflect.Bool:
		return typed(func(b *bool) Value {
			if !*b {
				return Value{}
			}
			return Bool(true)
		}, func(value Value) (bool, error) { return value.Bool(), nil })
	default:
		return column{}
	}
}

// typed returns a column of a V, or of a type that has it as its underlying type.
func typed[V any](get func(*V) Value, parse func(Value) (V, error)) column {
	return column{
		get: func(field unsafe.Pointer) Value { return get((*V)(field)) },
		set: func(field unsafe.Pointer, value Value) (err error) {
			*(*V)(field), err = parse(value)
			return err
		},
	}
}

// text returns a value of text, the zero one if it is empty.
func text(s string) Value {
	if s == "" {
		return Value{}
	}
	return String(s)
}

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

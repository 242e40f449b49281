package tablestore_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestValueAnswersItsOwnKindOnly(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 123_456_789, time.FixedZone("", 3600))
	for kind, value := range map[tablestore.Kind]tablestore.Value{
		0:                     {},
		tablestore.KindString: tablestore.String("text"),
		tablestore.KindInt:    tablestore.Int(7),
		tablestore.KindBool:   tablestore.Bool(true),
		tablestore.KindTime:   tablestore.Time(at),
		tablestore.KindBytes:  tablestore.Bytes([]byte("data")),
	} {
		if value.Kind() != kind {
			t.Errorf("kind %d, want %d", value.Kind(), kind)
		}
		for what, answers := range map[string]struct{ got, want bool }{
			"string": {value.String() == "text", kind == tablestore.KindString},
			"int":    {value.Int() == 7, kind == tablestore.KindInt},
			"bool":   {value.Bool(), kind == tablestore.KindBool},
			"time":   {value.Time().Equal(at.Truncate(time.Millisecond)), kind == tablestore.KindTime},
			"bytes":  {bytes.Equal(value.Bytes(), []byte("data")), kind == tablestore.KindBytes},
		} {
			if answers.got != answers.want {
				t.Errorf("a value of kind %d as %s: %t, want %t", kind, what, answers.got, answers.want)
			}
		}
	}
	if zone := tablestore.Time(at).Time().Location(); zone != time.UTC {
		t.Errorf("time in %v, want UTC", zone)
	}
}

func TestValuesAreEqualByKindAndContent(t *testing.T) {
	t.Parallel()
	values := everyKind()
	values = append(values, tablestore.Property{}, tablestore.Property{Value: tablestore.Int(0)},
		tablestore.Property{Value: tablestore.Int(1)}, tablestore.Property{Value: tablestore.Time(time.UnixMilli(0))})
	for i := range values {
		for j := range values {
			if got := values[i].Value.Equal(values[j].Value); got != (i == j) {
				t.Errorf("%+v and %+v: equal %t", values[i], values[j], got)
			}
		}
	}
}

func TestPropertiesAreEqualInAnyOrder(t *testing.T) {
	t.Parallel()
	a, b := tablestore.Property{Name: "a", Value: tablestore.Int(1)}, tablestore.Property{Name: "b", Value: tablestore.Int(2)}
	other := tablestore.Property{Name: "a", Value: tablestore.Int(3)}
	for _, test := range []struct {
		p, q tablestore.Properties
		want bool
	}{
		{nil, nil, true}, {nil, tablestore.Properties{}, true}, {tablestore.Properties{a, b}, tablestore.Properties{b, a}, true},
		{tablestore.Properties{a}, tablestore.Properties{b}, false}, {tablestore.Properties{a}, tablestore.Properties{a, b}, false},
		{tablestore.Properties{a, b}, tablestore.Properties{other, b}, false},
	} {
		if got := test.p.Equal(test.q); got != test.want {
			t.Errorf("%v and %v: equal %t, want %t", test.p, test.q, got, test.want)
		}
	}
}

func TestPropertiesGet(t *testing.T) {
	t.Parallel()
	properties := everyKind()
	if got := properties.Get("text").String(); got != "Zürich 😀\x00" {
		t.Errorf("text is %q", got)
	}
	if kind := properties.Get("absent").Kind(); kind != 0 {
		t.Errorf("an absent property has kind %d", kind)
	}
}

func TestLarge(t *testing.T) {
	t.Parallel()
	for size, chunks := range map[int]int{0: 1, 1: 1, 65_536: 1, 65_537: 2, 131_072: 2, 131_073: 3} {
		data := bytes.Repeat([]byte{7}, size)
		properties := tablestore.AppendLarge(one("other", tablestore.Int(1)), "payload", data)
		if len(properties) != 1+chunks {
			t.Errorf("%d bytes take %d properties, want %d", size, len(properties)-1, chunks)
		}
		if err := (tablestore.Batch{{Verb: put, Key: key("r"), Properties: properties}}).Validate(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if got := tablestore.Large(properties, "payload"); got == nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back as %d", size, len(got))
		}
	}
	if got := tablestore.Large(one("payload", tablestore.String("text")), "payload"); got != nil {
		t.Errorf("a string came back as %q", got)
	}
	if got := tablestore.Large(nil, "payload"); got != nil {
		t.Errorf("nothing came back as %q", got)
	}
	empty := tablestore.AppendLarge(nil, "payload", nil)
	if got := tablestore.Large(empty, "payload"); got == nil || len(got) != 0 {
		t.Errorf("empty data came back as %#v", got)
	}
}

func TestLargeDataCanBeAppendedTo(t *testing.T) {
	t.Parallel()
	data := []byte("abc")[:2:3]
	properties := tablestore.AppendLarge(nil, "payload", data)
	_ = append(tablestore.Large(properties, "payload"), 'X')
	if data[:3][2] != 'c' {
		t.Error("appending to what Large returned wrote behind the data")
	}
}

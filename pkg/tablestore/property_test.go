package tablestore_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

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
	} {
		if value.Kind() != kind {
			t.Errorf("kind %d, want %d", value.Kind(), kind)
		}
		for what, answers := range map[string]struct{ got, want bool }{
			"string": {value.String() == "text", kind == tablestore.KindString},
			"int":    {value.Int() == 7, kind == tablestore.KindInt},
			"bool":   {value.Bool(), kind == tablestore.KindBool},
			"time":   {value.Time().Equal(at.Truncate(time.Millisecond)), kind == tablestore.KindTime},
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
	const most = tablestore.MaxStringUnits
	for name, test := range map[string]struct {
		text   string
		chunks []int // in UTF-16 code units
	}{
		"nothing":                      {"", []int{0}},
		"a little":                     {"{}", []int{2}},
		"as much as fits":              {strings.Repeat("a", most), []int{most}},
		"one more":                     {strings.Repeat("a", most+1), []int{most, 1}},
		"two whole":                    {strings.Repeat("a", 2*most), []int{most, most}},
		"two bytes a unit":             {strings.Repeat("é", most+1), []int{most, 1}},
		"three bytes a unit":           {strings.Repeat("語", 2*most), []int{most, most}},
		"surrogate pairs":              {strings.Repeat("😀", most), []int{most, most}},
		"a surrogate pair at the edge": {"a" + strings.Repeat("😀", most/2), []int{most - 1, 2}},
	} {
		properties := tablestore.AppendLarge(one("other", tablestore.Int(1)), "payload", []byte(test.text))
		var chunks []int
		for i := range properties[1:] {
			chunks = append(chunks, len(utf16.Encode([]rune(properties[1+i].Value.String()))))
		}
		if diff := cmp.Diff(test.chunks, chunks); diff != "" {
			t.Errorf("%s is split (-want +got):\n%s", name, diff)
		}
		if err := (tablestore.Batch{{Verb: put, Key: key("r"), Properties: properties}}).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := tablestore.Large(properties, "payload"); got == nil || string(got) != test.text {
			t.Errorf("%s: %d bytes came back as %d", name, len(test.text), len(got))
		}
	}
	if got := tablestore.Large(one("payload", tablestore.Int(1)), "payload"); got != nil {
		t.Errorf("a number was read as %q", got)
	}
	if got := tablestore.Large(nil, "payload"); got != nil {
		t.Errorf("absent text was read as %q", got)
	}
}

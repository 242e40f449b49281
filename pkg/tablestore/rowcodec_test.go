package tablestore_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

type named string

type part struct {
	Count int `column:"count"`
	Other int // no column
}

// record has a column of each form.
type record struct {
	part
	Far    *part2
	Name   named           `column:"name"`
	Number int64           `column:"number"`
	Length time.Duration   `column:"length_ms"`
	Flag   bool            `column:"flag"`
	At     time.Time       `column:"at"`
	Raw    json.RawMessage `column:"raw"`
	Lines  []string        `column:"lines"`
	Delays []time.Duration `column:"delays"`
	Words  []string        `column:"words"`
	List   []part          `column:"list"`
	Maybe  *part           `column:"maybe"`
}

type part2 struct {
	Text string `column:"far"`
}

var errWords = errors.New("no words")

var records = tablestore.NewCodec[record](tablestore.FormatAs("words",
	func(words []string) string { return strings.Join(words, " ") },
	func(s string) ([]string, error) {
		if strings.Contains(s, "?") {
			return nil, errWords
		}
		return strings.Fields(s), nil
	}))

func row(p tablestore.Properties) *tablestore.Row {
	return &tablestore.Row{Key: tablestore.Key{Partition: "job", Row: "ROW"}, Properties: p}
}

func TestCodec_StoresEachTypeInItsForm(t *testing.T) {
	t.Parallel()
	want := record{
		part: part{Count: 1}, Far: &part2{"far"}, Name: "name", Number: 2, Length: 1500 * time.Millisecond, Flag: true,
		At: time.UnixMilli(7).UTC(), Raw: []byte(`{"a":1}`), Lines: []string{"a", "b"}, Delays: []time.Duration{time.Second, 2 * time.Millisecond},
		Words: []string{"c", "d"}, List: []part{{Other: 3}}, Maybe: &part{Count: 4},
	}
	p := records.Encode(&want, nil)
	expected := tablestore.Properties{
		{Name: "v", Value: tablestore.Int(1)}, {Name: "count", Value: tablestore.Int(1)}, {Name: "far", Value: tablestore.String("far")},
		{Name: "name", Value: tablestore.String("name")}, {Name: "number", Value: tablestore.Int(2)},
		{Name: "length_ms", Value: tablestore.Int(1500)}, {Name: "flag", Value: tablestore.Bool(true)},
		{Name: "at", Value: tablestore.Time(time.UnixMilli(7))}, {Name: "raw", Value: tablestore.String(`{"a":1}`)},
		{Name: "lines", Value: tablestore.String("a\nb")}, {Name: "delays", Value: tablestore.String("1000,2")},
		{Name: "words", Value: tablestore.String("c d")}, {Name: "list", Value: tablestore.String(`[{"Count":0,"Other":3}]`)},
		{Name: "maybe", Value: tablestore.String(`{"Count":4,"Other":0}`)},
	}
	if !slices.Equal(p, expected) {
		t.Errorf("stored as %v", p)
	}
	slices.Reverse(p) // A store may return them in any order.
	got := record{Far: &part2{}}
	if err := records.Decode(row(p), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(record{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCodec_OmitsWhatIsZeroButNumbers(t *testing.T) {
	t.Parallel()
	p := records.Encode(&record{Far: &part2{}}, nil)
	var names []string
	for i := range p {
		names = append(names, p[i].Name)
	}
	if want := []string{"v", "count", "number", "length_ms"}; !slices.Equal(names, want) {
		t.Errorf("an empty record is stored as %v", names)
	}
}

// An older replica does not erase a newer one's fields, and keeps no end of an own column.
func TestCodec_KeepsUnknownColumnsOfTheLoadedRow(t *testing.T) {
	t.Parallel()
	long := record{Far: &part2{}, Maybe: &part{}, List: make([]part, 2000)}
	newer := tablestore.Property{Name: "newer_1", Value: tablestore.Int(7)}
	loaded := append(records.Encode(&long, nil), newer)
	if loaded.Get("list_1").Kind() == 0 {
		t.Fatal("the list takes one column")
	}
	long.List = long.List[:1]
	p := records.Encode(&long, loaded)
	if !p.Get(newer.Name).Equal(newer.Value) || p.Get("list_1").Kind() != 0 || len(p) != 7 {
		t.Errorf("stored as %v", p)
	}
	var less tablestore.Properties
	if less = records.Without("name", "list").Encode(&long, nil); less.Get("list").Kind() != 0 || less.Get("maybe").Kind() == 0 {
		t.Errorf("stored without the list as %v", less)
	}
}

func TestCodec_ReadsAColumnOfSeveralProperties(t *testing.T) {
	t.Parallel()
	want := record{Far: &part2{}, List: make([]part, 2000)}
	got := record{Far: &part2{}}
	if err := records.Decode(row(records.Encode(&want, nil)), &got); err != nil || len(got.List) != 2000 {
		t.Errorf("read %d, %v", len(got.List), err)
	}
}

func TestCodec_NamesTheRowThatItCannotRead(t *testing.T) {
	t.Parallel()
	for text, p := range map[string]tablestore.Property{
		`row ROW of job, column words: no words`:                                           {Name: "words", Value: tablestore.String("?")},
		`row ROW of job, column delays: bad list of delays "1,x"`:                          {Name: "delays", Value: tablestore.String("1,x")},
		`row ROW of job, column list: unexpected end of JSON input`:                        {Name: "list", Value: tablestore.String("[")},
		`row ROW of job, column v: schema version 3 is newer than this program can handle`: {Name: "v", Value: tablestore.Int(3)},
	} {
		if err := records.Decode(row(tablestore.Properties{p}), &record{Far: &part2{}}); err == nil || err.Error() != text {
			t.Errorf("answered %v, want %s", err, text)
		}
	}
	next := tablestore.Properties{{Name: "v", Value: tablestore.Int(2)}, {Name: "number", Value: tablestore.Int(5)}}
	if got := (record{Far: &part2{}}); records.Decode(row(next), &got) != nil || got.Number != 5 {
		t.Errorf("read %+v of the next schema", got)
	}
}

func TestCodec_PanicsOverWhatItCannotStore(t *testing.T) {
	t.Parallel()
	type twice struct {
		A int `column:"a"`
		B int `column:"a"`
	}
	type odd struct {
		Maybe *json.RawMessage `column:"maybe"`
	}
	bad := json.RawMessage("{")
	for name, call := range map[string]func(){
		"two fields are column a": func() { tablestore.NewCodec[twice]() },
		"column maybe: json":      func() { tablestore.NewCodec[odd]().Encode(&odd{&bad}, nil) },
	} {
		func() {
			defer func() {
				if fault, ok := recover().(string); !ok || !strings.HasPrefix(fault, name) {
					t.Errorf("panicked with %q, want %q", fault, name)
				}
			}()
			call()
		}()
	}
}

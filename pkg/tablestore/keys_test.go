package tablestore_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                "",
		"tenant-1.x_Y":    "tenant-1.x_Y",
		"a:b":             "a=3Ab",
		"a=b":             "a=3Db",
		"a/b\\c#d?e'f":    "a=2Fb=5Cc=23d=3Fe=27f",
		"Zürich":          "Z=C3=BCrich",
		"\x00\xff":        "=00=FF",
		"with space %41+": "with=20space=20=2541=2B",
	} {
		if got := tablestore.Escape(raw); got != want {
			t.Errorf("Escape(%q) = %q, want %q", raw, got, want)
		}
		if got, err := tablestore.Unescape(want); err != nil || got != raw {
			t.Errorf("Unescape(%q) = %q, %v, want %q", want, got, err, raw)
		}
	}
}

func TestUnescapeAcceptsOnlyEscapedText(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"a:b", "a b", "=", "=3", "=3d", "=GG", "=3G", "=41", "a=2", "ü", "\x00"} {
		if got, err := tablestore.Unescape(bad); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error", bad, got)
		} else if !strings.Contains(err.Error(), "at byte") {
			t.Errorf("Unescape(%q): %v does not name the byte", bad, err)
		}
	}
}

func TestJoinAndSplit(t *testing.T) {
	t.Parallel()
	for want, parts := range map[string][]string{
		"":                 {""},
		"one":              {"one"},
		"a=3Ab":            {"a:b"},
		"STEP:0003:x":      {"STEP", "0003", "x"},
		"a:":               {"a", ""},
		"::":               {"", "", ""},
		"t=2F1:=3D:202601": {"t/1", "=", "202601"},
	} {
		if got := tablestore.Join(parts...); got != want {
			t.Errorf("Join(%q) = %q, want %q", parts, got, want)
		}
		got, err := tablestore.Split(want)
		if diff := cmp.Diff(parts, got); diff != "" || err != nil {
			t.Errorf("Split(%q): %v (-want +got)\n%s", want, err, diff)
		}
	}
	if got := tablestore.Join(); got != "" {
		t.Errorf("Join() = %q", got)
	}
	if _, err := tablestore.Split("a:=4x:c"); err == nil || !strings.Contains(err.Error(), "part 1") {
		t.Errorf("Split of a bad part: %v, want it named", err)
	}
}

func TestPad(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		n     int64
		width int
		want  string
	}{
		{0, 4, "0000"}, {7, 4, "0007"}, {9999, 4, "9999"}, {10_000, 4, "9999"}, {-1, 4, "0000"},
		{math.MaxInt64, 19, "9223372036854775807"}, {math.MinInt64, 3, "000"}, {0, 1, "0"},
	} {
		if got := tablestore.Pad(test.n, test.width); got != test.want {
			t.Errorf("Pad(%d, %d) = %q, want %q", test.n, test.width, got, test.want)
		}
	}
	if got := tablestore.Pad(uint64(math.MaxUint64), 20); got != "18446744073709551615" {
		t.Errorf("Pad of the greatest number is %q", got)
	}
}

func TestPrefixEnd(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"": "", "a": "b", "STEP:": "STEP;", "a\xff": "b", "a\xff\xff": "b", "\xff\xff": "", "\x00": "\x01", "Z=C3": "Z=C4",
	} {
		if got := tablestore.PrefixEnd(prefix); got != want {
			t.Errorf("PrefixEnd(%q) = %q, want %q", prefix, got, want)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("tenant", "a:b=c")
	f.Add("", "\x00\xffü")
	f.Fuzz(func(t *testing.T, a, b string) {
		joined := tablestore.Join(a, b)
		parts, err := tablestore.Split(joined)
		if err != nil || !slices.Equal(parts, []string{a, b}) {
			t.Errorf("Split(Join(%q, %q)) = %q, %v", a, b, parts, err)
		}
		key := tablestore.Key{Table: "table", Partition: "p" + joined, Row: tablestore.Escape("r" + a)}
		if err := key.Validate(); err != nil && len(key.Partition) <= tablestore.MaxKeyBytes && len(key.Row) <= tablestore.MaxKeyBytes {
			t.Errorf("key %v: %v", key, err)
		}
		if end := tablestore.PrefixEnd(a); end != "" && (a+b >= end || end <= a) {
			t.Errorf("PrefixEnd(%q) = %q is not after %q", a, end, a+b)
		}
		// Escape inverts Unescape.
		if raw, err := tablestore.Unescape(a); err == nil && tablestore.Escape(raw) != a {
			t.Errorf("Escape(Unescape(%q)) = %q", a, tablestore.Escape(raw))
		}
	})
}

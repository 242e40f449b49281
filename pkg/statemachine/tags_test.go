package statemachine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestTagFault(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", statemachine.MaxTagKey)
	for _, test := range []struct {
		key, value, fault string // a part of the fault
	}{
		{"a", "b", ""},
		{"env-1.x_y", "Prod: 5 = ä/\\\u00a0", ""},
		{"lucius.batch", "7", ""},
		{long, strings.Repeat("v", statemachine.MaxTagValue), ""},
		{long + "k", "v", "key of 1 to 32"},
		{"", "v", "key of 1 to 32"},
		{"Env", "v", "key of 1 to 32"},
		{"1a", "v", "key of 1 to 32"},
		{"ä", "v", "key of 1 to 32"},
		{"a b", "v", "key of 1 to 32"},
		{"a=b", "v", "key of 1 to 32"},
		{"a\n", "v", "key of 1 to 32"},
		{"a", "", "value of 1 to 128 bytes"},
		{"a", strings.Repeat("ä", 65), "value of 1 to 128 bytes"},
		{"a", "b\nc=d", "control characters"},
		{"a", "\u0085", "control characters"},
		{"a", "\xff", "UTF-8"},
	} {
		if got := statemachine.TagFault(test.key, test.value); test.fault == "" && got != "" || !strings.Contains(got, test.fault) {
			t.Errorf("%q=%q: %q, want %q", test.key, test.value, got, test.fault)
		}
	}
}

func TestParseTags(t *testing.T) {
	t.Parallel()
	many := make([]string, statemachine.MaxTags+1)
	for i := range many {
		many[i] = fmt.Sprint("k", i, "=v")
	}
	for name, test := range map[string]struct {
		texts []string
		want  statemachine.Tags
		fault string // a part of the error
	}{
		"none":                     {nil, "", ""},
		"sorted by key":            {[]string{"b=1", "a-=3", "a=2"}, "a=2\na-=3\nb=1", ""},
		"split at the first =":     {[]string{"a=b=c"}, "a=b=c", ""},
		"as many as fit":           {many[1:], statemachine.Tags(strings.Join(many[1:], "\n")), ""},
		"too many":                 {many, "", "at most 8 times, not 9"},
		"without a value":          {[]string{"env"}, "", `tag "env" must be key=value`},
		"with an empty value":      {[]string{"env="}, "", `tag "env=" must have a value`},
		"without a key":            {[]string{"=prod"}, "", `tag "=prod" must have a key`},
		"one key twice":            {[]string{"a=1", "a=1"}, "", "named twice"},
		"a tag of the system":      {[]string{"lucius.batch=7"}, "lucius.batch=7", ""}, // It can be searched for.
		"a fault after a good one": {[]string{"a=1", "B=1"}, "", `tag "B=1" must have a key`},
	} {
		got, err := statemachine.ParseTags(test.texts)
		if got != test.want || (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %q, %v, want %q and %q", name, got, err, test.want, test.fault)
		}
	}
}

func TestTags_With(t *testing.T) {
	t.Parallel()
	full := statemachine.NewTags(map[string]string{"a": "1", "b": "1", "c": "1", "d": "1", "e": "1", "f": "1", "g": "1", "h": "1"})
	for _, test := range []struct {
		tags, more, want statemachine.Tags
		fault            bool
	}{
		{"", "", "", false},
		{"", "b=2", "b=2", false},
		{"b=2", "", "b=2", false},
		{"a=1\nb=2", "b=3\nc=4", "a=1\nb=3\nc=4", false},
		{full, "a=2", full[:2] + "2" + full[3:], false},
		{full, "lucius.batch=7", full + "\nlucius.batch=7", false},
		{full, "i=1", "", true},
	} {
		if got, err := test.tags.With(test.more); got != test.want || (err != nil) != test.fault {
			t.Errorf("%q with %q: %q, %v, want %q", test.tags, test.more, got, err, test.want)
		}
	}
}

func TestTags(t *testing.T) {
	t.Parallel()
	tags := statemachine.NewTags(map[string]string{"b": "x=y", "lucius.batch": "7", "a": "1", "luciusx": "2"})
	if tags != "a=1\nb=x=y\nlucius.batch=7\nluciusx=2" {
		t.Errorf("the tags are %q", tags)
	}
	if own := tags.Own(); own != "a=1\nb=x=y\nluciusx=2" || own.Own() != own {
		t.Errorf("its own tags are %q", own)
	}
	if all := slices.Collect(tags.All()); len(all) != 4 || tags.First() != all[0] || all[1] != "b=x=y" {
		t.Errorf("one by one: %q, the first %q", all, tags.First())
	}
	want := map[string]string{"b": "x=y", "lucius.batch": "7", "a": "1", "luciusx": "2"}
	if got := tags.Map(); !maps.Equal(got, want) || statemachine.NewTags(got) != tags {
		t.Errorf("by key: %v", got)
	}
	for wanted, include := range map[statemachine.Tags]bool{
		"": true, "a=1": true, "luciusx=2": true, "a=1\nluciusx=2": true, tags: true,
		"a=": false, "a=11": false, "b=x": false, "=1": false, "a=1\nc=3": false,
	} {
		if got := tags.Include(wanted); got != include {
			t.Errorf("they include %q: %t", wanted, got)
		}
	}
	var none statemachine.Tags
	if none.Map() != nil || none.First() != "" || none.Own() != "" || none.Include("a=1") || !none.Include("") || len(slices.Collect(none.All())) != 0 {
		t.Error("no tags are some")
	}
}

package samplepipeline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/samplepipeline"
)

func TestExtractFromPlainText(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data  string
		title string
		body  string
	}{
		"title and paragraphs": {
			"Bees\n\nThey dance\nin the dark.\n \t\nThen they fly.\n", "Bees", "Bees\nThey dance in the dark.\nThen they fly.",
		},
		"lines as Windows ends them":     {"Bees\r\n\r\nThey\r\ndance.", "Bees", "Bees\nThey dance."},
		"a byte order mark":              {"\ufeffBees", "Bees", "Bees"},
		"white space of all kinds":       {"  The \u00a0 bees\t\u2003dance  ", "The bees dance", "The bees dance"},
		"soft hyphens and control bytes": {"Lon\u00adgi\u200btude\x00 \x1b[31mred", "Longitude [31mred", "Longitude [31mred"},
		"letters and their accents":      {"cafe\u0301", "caf\u00e9", "caf\u00e9"},
		"bytes that are not UTF-8":       {"caf\xe9 noir", "caf\ufffd noir", "caf\ufffd noir"},
		"a long title":                   {strings.Repeat("é", 201), strings.Repeat("é", 199) + "…", strings.Repeat("é", 201)},
		"HTML is not looked for":         {"a <b> c", "a <b> c", "a <b> c"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := samplepipeline.Text{Name: "a.TXT", Title: test.title, Language: "en", Body: test.body}
			got, err := samplepipeline.Extract("a.TXT", []byte(test.data), "en")
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestExtractFromHTML(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data, title, body string
	}{
		"title and body":             {"<title>A &amp; B</title><p>one<p>two", "A & B", "one\ntwo"},
		"no title":                   {"<h2>Minor</h2><h1>Ma<i>j</i>or</h1><h1>Other</h1>", "Major", "Minor\nMajor\nOther"},
		"no title and no heading":    {"just text", "a.html", "just text"},
		"the first of two titles":    {"<title></title><title>B</title>x", "a.html", "x"},
		"markup inside of words":     {"un<b>der</b>line <i>all</i>", "a.html", "underline all"},
		"a line break":               {"one<br>two<br/>three", "a.html", "one\ntwo\nthree"},
		"cells of a table":           {"<table><tr><td>a<td>b</td></tr><tr><th>c</th><th>d</th></tr></table>", "a.html", "a b\nc d"},
		"entities":                   {"&lt;b&gt; &eacute;&#233;&#xe9; &nbsp; &unknown; AT&T", "a.html", "<b> ééé &unknown; AT&T"},
		"entities that are no text":  {"a&#0;b&#x110000;c&shy;d&#8203;e&#7;f", "a.html", "a\ufffdb\ufffdcdef"},
		"comments":                   {"a<!-- b -->c<!-->d<!-- <p>e", "a.html", "acd"},
		"scripts and styles":         {"a<script>b<p></p></script>c<style>d</style>e", "a.html", "ace"},
		"a script that speaks of it": {`a<script>"<script>"+"<\/script>"</script>b`, "a.html", "ab"},
		"a script in an attribute":   {`a<i title="<script>">b</i>c`, "a.html", "abc"},
		"nested drawings":            {"a<svg><svg>b</svg><title>c</title></svg>d", "a.html", "ad"},
		"a drawing that is closed":   {"a<svg/>b", "a.html", "ab"},
		"an element in another kind": {"a<template><svg></template>b", "a.html", "ab"},
		"ends without beginnings":    {"</p></script></svg></title>a</b>", "a.html", "a"},
		"a tag that does not end":    {"a<p b=", "a.html", "a"},
		"upper case":                 {"<TITLE>T</TITLE><SCRIPT>x</SCRIPT><P>a", "T", "a"},
		"CDATA and declarations":     {"<?xml version='1.0'?><!DOCTYPE x>a<![CDATA[b]]>c", "a.html", "ac"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := samplepipeline.Extract("a.html", []byte(test.data), "")
			want := samplepipeline.Text{Name: "a.html", Title: test.title, Body: test.body}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// Documents that try to break a parser cost time and memory in proportion to their size,
// and yield the text that they contain.
func TestHostileHTML(t *testing.T) {
	t.Parallel()
	const many = 100_000
	for name, data := range map[string]string{
		"deep nesting":             strings.Repeat("<div>", many) + "text",
		"open formatting":          strings.Repeat("<b><i><a href=x>", many) + "text",
		"nested tables":            strings.Repeat("<table><tr><td>", many) + "text",
		"many ends":                "text" + strings.Repeat("</template>", many),
		"a huge attribute":         `<p title="` + strings.Repeat("x", 10*many) + `">text`,
		"many attributes":          "<p " + strings.Repeat("a=b ", many) + ">text",
		"a comment full of dashes": "<!--" + strings.Repeat("-", many) + "-->text",
		"null bytes":               strings.Repeat("\x00", many) + "text",
		"nested hidden elements":   strings.Repeat("<svg>", many) + "no" + strings.Repeat("</svg>", many) + "text",
		"an endless entity":        "<p>text</p><!--&" + strings.Repeat("#", many) + "-->",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := samplepipeline.Extract("a.html", []byte(data), "en")
			if err != nil || got.Body != "text" {
				t.Errorf("%.100q, %v", got.Body, err)
			}
		})
	}
}

func TestDocumentsThatCannotBeExtracted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, data, want string }{
		"another kind":       {"scan.pdf", "%PDF", `"scan.pdf" is neither text nor HTML`},
		"no ending":          {"README", "text", `"README" is neither text nor HTML`},
		"an empty file":      {"a.txt", "", `"a.txt" holds no text`},
		"only white space":   {"a.txt", " \n\t\u00a0", `"a.txt" holds no text`},
		"HTML without text":  {"a.html", "<title>t</title><script>s</script><br>", `"a.html" holds no text`},
		"a title left open":  {"a.html", "<title>all of it <p>text", `"a.html" holds no text`},
		"a script left open": {"a.html", "<script>all of it <p>text", `"a.html" holds no text`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := samplepipeline.Extract(test.file, []byte(test.data), "en")
			if !errors.Is(err, samplepipeline.ErrPermanent) || !strings.HasSuffix(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

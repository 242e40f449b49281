package samplepipeline_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/samplepipeline"
)

// For any input the extracted text is clean, and extracting it again gives the same text.
func FuzzExtract(f *testing.F) {
	f.Add("<title>t</title><p>a&amp;b<script>c</script>")
	f.Add("<svg><b>\x00</svg>&#xd800;&shy;\xff<table><td>x")
	f.Add("<!-- --!><h1>a<template><h1>b</template></h1>")
	f.Fuzz(func(t *testing.T, data string) {
		for _, name := range []string{"a.html", "a.txt"} {
			text, err := samplepipeline.Extract(name, []byte(data), "en")
			if err != nil {
				continue
			}
			for _, s := range []string{text.Title, text.Body} {
				if s == "" || !utf8.ValidString(s) || s != strings.TrimSpace(s) || strings.ContainsFunc(s, unwanted) {
					t.Errorf("%s: %q is not clean", name, s)
				}
			}
			again, err := samplepipeline.Extract(name, []byte(data), "en")
			if diff := cmp.Diff(text, again); diff != "" || err != nil {
				t.Errorf("%s: %v (-first +second):\n%s", name, err, diff)
			}
			if samplepipeline.Embed(text).Chunks == nil {
				t.Errorf("%s: a text without chunks", name)
			}
		}
	})
}

// unwanted matches invisible characters except the line break.
func unwanted(r rune) bool {
	return r != '\n' && unicode.IsControl(r) || r == '\u00ad' || r == '\u200b' || r == '\ufeff'
}

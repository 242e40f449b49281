package console

import (
	"cmp"
	"strings"
)

// pages returns all pages, in the order of the navigation.
func pages() []page {
	return []page{
		{pattern: "{$}", title: "Attention", live: true, show: attention},
	}
}

// navigation returns the entries of the navigation, with the counts that the user may see.
func (c *Console) navigation(f *frame) (entries []navEntry) {
	if f.Who.Name == "" {
		return nil // Nobody is signed in.
	}
	for _, p := range pages() {
		if p.title != "" {
			to := Path + strings.TrimSuffix(p.pattern, "{$}")
			entries = append(entries, navEntry{Title: p.title, Path: to, Here: cmp.Or(f.View.Nav, f.View.Title) == p.title})
		}
	}
	return entries
}

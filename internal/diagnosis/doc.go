// Package diagnosis says in sentences what a job waits for, or how it ended, and what to do
// next. The command line and the console show the same sentences, each with times in its
// own words.
//
// It is pure: a job and its history, as the API answers them, give an [Answer].
package diagnosis

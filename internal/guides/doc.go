// Package guides reads the fenced blocks of the project's documents, so that `make guides`
// can run them as a reader would: in order, one document after the other, each in a folder
// of its own. What it does with a block follows from the HTML comment before it:
//
//	(none)                  a block of sh or sql is run, and must succeed; text and diagrams
//	                        are left alone. Any other block needs a comment.
//	<!-- run: TITLE -->     run it, and report under this title the time since the last title
//	<!-- serve: TEXT -->    start a block of sh, go on when it prints TEXT, if one is given,
//	                        and end it after the document
//	<!-- stop -->           end the last block that was started and runs
//	<!-- file: NAME -->     write the block to this file
//	<!-- part of: PATH -->  the block is a part of this file of the repository, whose tests
//	                        hold it; its indentation may differ
//	<!-- prints -->         the block is a part of what the block before it printed, or
//	                        one that was started and runs, with … for anything
//	<!-- not run: WHY -->   leave the block alone. WHY names the test that holds it, or what
//	                        the tests do not have
//	<!-- hidden             run these lines, which readers do not see
//	LINES
//	-->
//	<!-- hidden serve: TEXT
//	LINES                   the same for lines that are started
//	-->
//
// A document that begins with <!-- in a clone --> is run in a copy of the repository, any
// other one in an empty folder; one that begins with <!-- with PostgreSQL --> has a database,
// for which the URL [Database] stands. CLONE is the repository, `lucius` its program. Ports
// 8080, 8443 and 9000 stand for free ones. Variables that a block sets are there in the
// next one.
package guides

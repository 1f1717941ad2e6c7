# Who ordered, in alphabetical order.
use strict;
use warnings;
use JSON::PP;

local $/;
open my $in, "<", $ENV{HEADWAY_DEPENDENCIES} or die "no results: $!";
my $lines = decode_json(<$in>)->{fetch};
my %seen = map { (split /;/)[1] => 1 } grep { tr/;// == 2 } @$lines;
open my $out, ">", $ENV{HEADWAY_RESULT} or die "no place for a result: $!";
print $out encode_json([sort keys %seen]);
